"""What is trained, apart from how it is split: model, data, and the framework's habits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from gputop_analysis.vram.setup import Lora, ModelShape


@dataclass(frozen=True, slots=True)
class FrameworkHabits:
    """What a training framework does that costs time, whatever the split."""

    host_us_per_kernel: float = 34.0
    """CPU time to issue one kernel from eager Python."""
    attention: str = "flash"
    """``eager``: scores in memory; ``flash-1``, ``flash`` (version 2), ``flash-3`` (or cuDNN's)."""
    overlap_gradients: bool = True
    """Gradient reduction runs behind the last micro-batch's backward."""
    overlap_tensor_parallel: bool = False
    hidden_tensor_share: float = 0.0
    """Of tensor-parallel communication that hides where it overlaps; 0: all but the first of as
    many pieces as there are ranks (Transformer Engine's user buffers).
    """
    overlap_expert_parallel: bool = False
    """Tokens travel behind another micro-batch's compute (DualPipe, arXiv:2412.19437, 3.2.1)."""
    dispatcher: str = "alltoall"
    """How tokens travel to experts: ``alltoall`` (each copy by itself), ``deepep`` (once for each
    node, in 8 bits where the products are; DeepEP and HybridEP), ``allgather`` (all to all ranks).
    """
    cuda_graphs: str = ""
    """What is launched as captured graphs: nothing, ``partial`` (all but the experts, whose sizes
    change), or ``full`` (whole iterations).
    """
    balanced_stages: bool = False
    """Layers are spread over stages so that the head counts; else each stage has as many."""
    split_pipeline_messages: bool = True
    """Tensor-parallel ranks send a part each to the next stage (Megatron), else all (DeepSpeed)."""
    pipeline_sync_ms: float = 0.2
    """Added to each message between stages: Megatron-LM synchronises the device after every pair of
    sends and receives, after which the CPU has to run ahead again.
    """
    pipelined_tensor_ms: float = 0.0
    """CPU time of a layer for each tensor-parallel rank once there are pipeline stages."""
    gradient_bytes: int = 4
    master_weights: bool = True
    """The optimizer has an fp32 copy of the weights, and moments in fp32; else all have 16 bits."""
    fused_elementwise: bool = True
    """Bias, dropout, activation and residual in single kernels."""
    compiled: bool = False
    """By torch.compile, which makes such kernels of PyTorch's operations."""
    written_out: bool = False
    """Where they are not: norms, rotary embedding and activation are PyTorch's own operations, as
    in Transformers and torchtitan.
    """
    fused_accumulation: bool = True
    """A weight gradient is added to the held one in the product's epilogue (Megatron-LM)."""
    fused_loss: bool = False
    plain_adapters: bool = False
    """Adapters are in the computation's type (torchtune, NeMo), without the casts of peft's."""
    transformer_engine: str = ""
    """Its release under Megatron; empty: a recent one."""


ADAPTERS_SHARE = 0.01
"""Of the parameters that LoRA of rank 16 trains: 0.1 to 2 %, by its targets."""


def trainable_share(adapters: bool) -> float:
    """Of the parameters, with adapters or without."""
    return ADAPTERS_SHARE if adapters else 1.0


@dataclass(frozen=True, slots=True)
class Job:
    """One training step: ``global_batch`` sequences of ``seq`` tokens."""

    model: ModelShape
    seq: int
    global_batch: int
    dtype: str = "bf16"
    optimizer: str = "adamw"
    trainable_share: float = 1.0
    """Of the parameters; below 1 with adapters: frozen weights need no gradient and optimizer."""
    lora: Lora | None = None
    """The trained adapters, for memory; None with a ``trainable_share`` below 1: the default's."""
    quantized: str = ""
    """Of the frozen weights under adapters: ``nf4``, ``int8``; empty: not quantised."""
    expert_imbalance: float = 1.1
    """Tokens of the busiest expert rank over the mean; 1 with a capacity factor that pads."""
    roles: tuple[str, ...] = ()
    """RLHF: further models on the same GPUs: ``critic``, ``reference``, ``reward``."""
    recipe: str = "megatron"
    """Of the memory estimate (``gputop_analysis.vram.setup.RECIPES``)."""
    framework: str = ""
    """What trains, by its name in data/frameworks.csv; empty: not told."""
    habits: FrameworkHabits = FrameworkHabits()

    @property
    def tokens(self) -> int:
        return self.seq * self.global_batch

    def of_framework(self, name: str, recipe: str, habits: FrameworkHabits) -> Job:
        """The same trained by a framework."""
        return replace(self, framework=name, recipe=recipe, habits=habits)

    def but(self, **changes: Any) -> Job:
        """The same with some fields changed; those of ``habits`` may be given by name."""
        inner = {
            key: changes.pop(key)
            for key in list(changes)
            if key in FrameworkHabits.__dataclass_fields__
        }
        return replace(self, habits=replace(self.habits, **inner), **changes)
