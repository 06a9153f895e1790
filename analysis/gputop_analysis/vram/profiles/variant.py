"""A setup's event profile: all that decides the order of a step's events, not sizes."""

from __future__ import annotations

from gputop_analysis.catalog.params import linears
from gputop_analysis.vram.formula.habits import habits
from gputop_analysis.vram.profiles.sharded import Sharding
from gputop_analysis.vram.setup import ModelShape, Setup

HALVES = ("bf16", "fp16")
PADS_LABELS_SINCE = (4, 49)
"""Before, the loss copied the shifted logits (Transformers, pull request 35646)."""
FLOATS_IN_LOSS_SINCE = (4, 46)
"""Before, the model itself turned its logits to fp32 and returned those."""
ALIKE = {"mistral": "llama"}
"""Families whose modules are the same as those of another."""
_RECIPES = ("transformers", "plain", "torchtitan")
"""Those that keep gradients in the dtype of the weights and no second copy of them."""


def variant(setup: Setup) -> str | None:
    """Profile's name for a setup; None for what none can stand for (shards, images, roles)."""
    if is_fully_sharded(setup):
        setup = _on_one_gpu(setup)
    precision = _precision(setup)
    if precision is None or _beyond(setup):
        return None
    parts = (
        ALIKE.get(setup.model.family, setup.model.family),
        _structure(setup.model),
        precision,
        _training(setup),
        f"checkpointing-{setup.checkpointing}",
        f"loss-{_loss(setup)}",
        _kernels(setup),
        "eager" if setup.attention == "eager" else "sdpa",
        "windowed" if _windowed(setup) else "",
    )
    return "/".join(part for part in parts if part)


def _windowed(setup: Setup) -> bool:
    """Whether a window masks part of the sequence, which no kernel of FlashAttention is called for.

    Gemma 3 (arXiv 2503.19786): 1024 tokens, 512 in the 270M and 1B models. One layer of six has no
    window; its profile takes it as the others.
    """
    shape = setup.model
    return shape.family == "gemma3_text" and setup.seq > (512 if shape.hidden <= 1152 else 1024)


def is_ddp(setup: Setup) -> bool:
    """Whether it is replicated by DistributedDataParallel and split in no other way."""
    parallel = setup.parallel
    return parallel.sharding == "ddp" and parallel.world == parallel.dp > 1 and parallel.ep == 1


def is_fully_sharded(setup: Setup) -> bool:
    """Whether FSDP, and nothing else, spreads it over ranks."""
    parallel = setup.parallel
    return (
        parallel.sharding in ("fsdp1", "fsdp2", "hsdp")
        and parallel.world == parallel.dp > 1
        and parallel.ep == 1
        and parallel.reshard_after_forward
    )


def sharding_of(setup: Setup) -> Sharding | None:
    """How FSDP spreads a setup; None: it does not."""
    if not is_fully_sharded(setup):
        return None
    ranks = setup.parallel.dp // setup.parallel.replicas
    return Sharding(
        ranks=ranks,
        wide=_is_mixed(setup),
        flat=setup.parallel.sharding == "fsdp1",
        keeps_boundaries=habits(setup).frozen_boundary > 0,
    )


def _is_mixed(setup: Setup) -> bool:
    """Whether FSDP itself casts fp32 shares to the computation's type."""
    return setup.weights == "fp32" and setup.dtype in HALVES and not setup.quantized


def _on_one_gpu(setup: Setup) -> Setup:
    """What a rank computes: under mixed precision what 16-bit weights do."""
    single = setup.but(sharding="none", dp=1, replicas=1)
    if _is_mixed(setup):
        return single.but(weights="", autocast=True)
    return single


def _beyond(setup: Setup) -> bool:
    """What changes the events in ways that no profile holds."""
    is_split = setup.parallel.world > 1 and not is_ddp(setup)
    # whether experts are quantised depends on the version
    has_quantized_experts = setup.quantized and setup.model.experts
    reasons = (
        is_split,
        setup.parallel.offload != "none",
        setup.roles,
        setup.freeze,
        has_quantized_experts,
        setup.images,
        not _one_size(setup.model),
        setup.master_weights,
        setup.compile,
        setup.optimizer == "none",  # without gradients little of the forward pass is kept
        setup.optimizer_in_backward,
        setup.dropout,
        setup.model.dropout is False,  # a profile drops as its family does
        setup.modules_to_save,
        setup.bitsandbytes,
        setup.lengths == "varied",
        setup.lora is not None and setup.lora.dora,
        setup.offload_activations,
        setup.recipe not in _RECIPES,
    )
    return any(reasons)


def _kernels(setup: Setup) -> str:
    """Fused ones, with that of the gated MLP's product or without."""
    if not setup.kernels:
        return ""
    if setup.gated_kernel or not setup.model.gated_mlp:
        return "kernels"
    return "kernels-but-gated"


def _one_size(shape: ModelShape) -> bool:
    """Whether it sees nothing, or a pair of towers sees images of one known size."""
    if shape.family == "clip":
        return shape.vision_image > 0
    return not shape.vision_layers


def _precision(setup: Setup) -> str | None:
    """``half``, ``half-autocast``, ``single`` or ``amp`` (fp32 weights, autocast); else None."""
    weights = setup.weights or setup.dtype
    if setup.grad_dtype not in ("", weights):
        return None
    if setup.dtype in HALVES and weights == setup.dtype:
        return "half-autocast" if setup.autocast else "half"
    if weights == "fp32":
        if setup.dtype == "fp32":
            return "single"
        if setup.dtype in HALVES:
            return "amp"
        return None
    return None


def _loss(setup: Setup) -> str:
    """The loss, a plain one as that version of Transformers computes it."""
    version = tuple(int(part) for part in setup.transformers.split(".")[:2] if part.isdigit())
    if setup.loss != "plain" or not version or version >= PADS_LABELS_SINCE:
        return setup.loss
    if version >= FLOATS_IN_LOSS_SINCE:
        return "plain-shifted"
    return "plain-float"


def is_tied(shape: ModelShape) -> bool:
    """Whether head and embedding share their weights; Transformers 5 ties every T5."""
    return shape.tied_embeddings or shape.family == "t5"


def _structure(shape: ModelShape) -> str:
    """What the modules of one family do differently from model to model."""
    kv_heads = shape.kv_heads or shape.heads
    parts = (
        "tied" if is_tied(shape) else "",
        "mha" if kv_heads == shape.heads else "",
        "gated" if shape.family == "t5" and shape.gated_mlp else "",
        "bias" if shape.attention_bias else "",
        f"moe{shape.shared_experts or ''}" if shape.experts else "",
        f"dense{shape.first_dense_layers}" if shape.experts and shape.first_dense_layers else "",
        f"every{shape.moe_every}" if shape.experts and shape.moe_every > 1 else "",
        "qrank" if shape.mla_q_rank else "",
    )
    return "-".join(part for part in parts if part)


def _training(setup: Setup) -> str:
    """``full``, or which adapters are trained on what."""
    if setup.lora is None:
        return "full"
    parts = ("lora", _targets(setup), setup.lora.dtype, "dropout" if setup.lora.dropout else "")
    return "-".join(part for part in (setup.quantized, *parts) if part)


def _targets(setup: Setup) -> str:
    """The layers that adapters are on; all of them by name are ``all-linear``."""
    assert setup.lora is not None
    every = {linear.name for linear in linears(setup.model, moe=False)}
    wanted = set(setup.lora.targets)
    if not setup.model.experts and every <= wanted:
        return "all-linear"
    return "+".join(sorted(wanted))
