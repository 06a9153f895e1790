"""The subject of a memory estimate: a model and how it is trained, for all tiers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from gputop_analysis.parallelism.split import Split

DTYPES = ("fp32", "bf16", "fp16", "fp8", "int8", "nf4")
OPTIMIZERS = (
    "adamw",
    "adamw-fused",
    "adamw-loop",
    "adamw-8bit",
    "adamw-paged",
    "adamw-paged-8bit",
    "adafactor",
    "lion",
    "lion-8bit",
    "sgd",
    "sgd-momentum",
    "muon",
    "came",
    "galore",
    "galore-8bit",
    "none",
)
"""``adamw`` is torch's default on CUDA (foreach); ``none`` trains nothing."""
GALORE = ("galore", "galore-8bit")
"""Those that keep states of gradients projected to a low rank."""
ATTENTIONS = ("eager", "sdpa", "flash")
LOSSES = ("plain", "fused", "chunked")
"""``fused``: logits are never whole (Liger, cut cross-entropy); ``chunked``: in pieces."""
LENGTHS = ("", "fixed", "varied")
RECIPES = (
    "transformers",
    "torchtitan",
    "megatron",
    "deepspeed",
    "nanotron",
    "litgpt",
    "unsloth",
    "plain",
)
"""Whose habits a run has where options are open: gradients' dtype, master weights, buffers."""
KEEP_MASTER_WEIGHTS = ("megatron", "deepspeed", "nanotron")
"""Of these, trainers that have an fp32 copy of weights of 16 bits whatever else is said."""
OF_ATTENTION = ("to_k", "to_q", "to_v", "to_out.0")
"""Layers that diffusers' example scripts adapt."""
TRANSFORMERS_CODE = ("transformers", "deepspeed")
"""Recipes whose model runs as Transformers wrote it, operation by operation."""
PLAIN_LOOPS = ("litgpt", "plain")
"""Recipes whose loop is PyTorch's own, with modules in which its operations are written out."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The architecture in a Hugging Face configuration's terms. Counts; 0 where there is none."""

    name: str
    family: str = "llama"
    hidden: int = 0
    layers: int = 0
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    ffn: int = 0
    vocab: int = 0
    gated_mlp: bool = True
    tied_embeddings: bool = False
    max_position: int = 0
    token_types: int = 0
    """Rows of BERT's segment embedding."""
    attention_bias: bool | None = None
    """Of queries, keys and values; None: as the family has it."""
    dropout: bool | None = None
    """Whether its configuration drops anything; None: as the family does."""
    experts: int = 0
    shared_experts: int = 0
    top_k: int = 0
    moe_ffn: int = 0
    shared_ffn: int = 0
    first_dense_layers: int = 0
    moe_every: int = 1
    mla_q_rank: int = 0
    mla_kv_rank: int = 0
    mla_nope_dim: int = 0
    mla_rope_dim: int = 0
    mla_v_dim: int = 0
    vision_layers: int = 0
    vision_hidden: int = 0
    vision_heads: int = 0
    vision_ffn: int = 0
    vision_patch: int = 0
    vision_image: int = 0
    """Edge of an image in pixels, of a tower that takes one size; the shorter one of those that a
    denoiser is trained at.
    """
    frames: int = 0
    """Of a video, for a denoiser of videos."""
    vision_params: int = 0
    projector_params: int = 0
    params: int = 0
    """Total as counted on the meta device or by its makers; 0: to be computed from the shape."""
    source: str = ""


@dataclass(frozen=True, slots=True)
class Lora:
    """A LoRA adapter (Hu et al. 2021); ``targets`` as in peft, ``all-linear``: not the head; or
    another that peft makes.
    """

    rank: int = 16
    targets: tuple[str, ...] = ("q_proj", "v_proj")
    dtype: str = "fp32"
    dropout: float = 0.0
    dora: bool = False
    """A trained magnitude a row of the weight besides (Liu et al. 2024)."""
    peft: str = ""
    """Another adapter in its place, by its configuration (``peft_config.text_of``); ``rank`` is 0
    then, and ``dtype`` the only other field that counts.
    """


@dataclass(frozen=True, slots=True)
class Setup:
    """A model and how it is trained, on one GPU of the run."""

    model: ModelShape
    seq: int = 2048
    micro_batch: int = 1
    accumulation: int = 1
    dtype: str = "bf16"
    """Of the computation."""
    weights: str = ""
    """Of stored weights; empty: as ``dtype``. ``fp32`` with a ``dtype`` of bf16: autocast."""
    quantized: str = ""
    """Of the frozen base weights under LoRA: ``int8``, ``nf4`` or empty."""
    double_quant: bool = True
    """With ``nf4``: the constants of its blocks are quantised again."""
    grad_dtype: str = ""
    """Of the gradients that are kept; empty: as the weights."""
    master_weights: bool = False
    """An fp32 copy in the optimizer (Megatron, DeepSpeed and apex with bf16 or fp16 weights)."""
    optimizer: str = "adamw"
    galore_rank: int = 128
    """Of the projected gradients, with an optimizer of GaLore (Zhao et al. 2024)."""
    attention: str = "sdpa"
    checkpointing: str = "none"
    loss: str = "plain"
    lora: Lora | None = None
    freeze: tuple[str, ...] = ()
    """Parts that are not trained: ``vision``, ``projector``, ``language``, ``embeddings``."""
    images: int = 0
    image_size: int = 336
    """Pixels; 0: as the network has it."""
    cached: tuple[str, ...] = ()
    """Of a diffusion model, what is encoded before the training: ``latents``, ``text``, or
    ``none``; empty: as the usual script does it.
    """
    roles: tuple[str, ...] = ()
    """RLHF: models on this GPU besides the actor: ``critic``, ``reference``, ``reward``."""
    kernels: bool = False
    """Fused kernels for norms, rotary embedding and a cross-entropy that works in place on whole
    logits (Liger without its linear loss, Unsloth, foak).
    """
    gated_kernel: bool = True
    """With ``kernels``: one of them is that of the gated MLP's product, as in Liger."""
    optimizer_in_backward: bool = False
    """Each parameter is updated as soon as its gradient is there, which is then freed."""
    offload_activations: bool = False
    """What the forward pass keeps waits on the host."""
    autocast: bool = False
    """Mixed precision is on though the stored weights are in 16 bits already."""
    dropout: float = 0.0
    """Of the model itself, in training."""
    clip_grad: bool = True
    compile: bool = False
    parallel: Split = field(default_factory=Split)
    recipe: str = "transformers"
    transformers: str = ""
    """Version of transformers of the run, as ``4.48.1``; empty: the one at hand, or newest."""
    bitsandbytes: str = ""
    """Release of bitsandbytes with quantised weights, as ``0.41``; empty: a recent one."""
    transformer_engine: str = ""
    """Release of Transformer Engine under Megatron-LM, as ``1.11``; empty: a recent one."""
    modules_to_save: tuple[str, ...] = ()
    """Trained in full beside adapters, as peft has it: ``embeddings``, ``head``."""
    lengths: str = ""
    """``fixed`` (packed or padded to ``seq``), ``varied`` (each batch as long as its longest text,
    ``seq`` at the most); empty: not said.
    """
    allocator: str = ""
    """``PYTORCH_CUDA_ALLOC_CONF`` of the run."""
    reduce_bucket_size: int = 500_000_000
    """DeepSpeed's, in values; 0: ``auto``, for which Transformers takes the hidden size squared."""
    server_share: float = 0.0
    """Of each GPU's memory, which an inference server beside the training holds (vLLM's
    ``gpu_memory_utilization``).
    """
    overlap_comm: bool = False
    """DeepSpeed fills one bucket of gradients while the other is reduced."""

    def but(self, **changes: Any) -> Setup:
        """The same with some fields changed; those of ``parallel`` may be given by name."""
        inner = {
            key: changes.pop(key) for key in list(changes) if key in Split.__dataclass_fields__
        }
        parallel = replace(changes.pop("parallel", self.parallel), **inner)
        return replace(self, parallel=parallel, **changes)

    def with_adapters(self, lora: Lora, quantized: str = "") -> Setup:
        """The same with frozen weights and adapters that AdamW trains where GaLore trained all."""
        return self.but(
            lora=lora,
            quantized=quantized or self.quantized,
            master_weights=False,
            optimizer=self.optimizer.replace("galore", "adamw"),
        )

    def by_engine(self) -> Setup:
        """The same by DeepSpeed's habits where it trains: Transformers and Accelerate have no other
        engine for ZeRO. It casts the whole model to the type of the computation instead of
        autocasting (``_configure_distributed_model`` of its ``runtime/engine.py``). Unsloth brings
        kernels, and a cross-entropy that never has whole logits.
        """
        if self.recipe == "unsloth":
            return replace(self, kernels=True, loss="fused" if self.loss == "plain" else self.loss)
        if not self.by_deepspeed:
            return self
        if self.dtype in ("bf16", "fp16"):
            return replace(self, recipe="deepspeed", weights="", autocast=False)
        return replace(self, recipe="deepspeed")

    @property
    def peft(self) -> str:
        """The configuration of an adapter that only peft's own modules tell of; empty: none."""
        return self.lora.peft if self.lora is not None else ""

    @property
    def by_deepspeed(self) -> bool:
        """Whether DeepSpeed's engine trains it."""
        by_trainer = self.recipe == "transformers" and self.parallel.sharding.startswith("zero")
        return self.recipe == "deepspeed" or by_trainer

    @property
    def tokens(self) -> int:
        """Of one micro-batch, before context parallelism splits it."""
        return self.seq * self.micro_batch
