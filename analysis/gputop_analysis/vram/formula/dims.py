"""The numbers that a formula computes with: whole numbers of one setup, or arrays of them for many
at once.

The kinds of a setup (optimizer, sharding, checkpointing, ...) are those of the setup; whatever is
counted may be an array, so that a planner evaluates thousands of configurations of the same kind in
one call.
"""

from __future__ import annotations

from dataclasses import dataclass

from gputop_analysis.catalog.params import moe_layers
from gputop_analysis.parallelism.split import expert_tensor_parallel
from gputop_analysis.vram.formula.elementwise import Number, choose, least, most, true, up
from gputop_analysis.vram.setup import ModelShape, Setup

COUNTS = ("seq", "micro_batch", "accumulation")
DEGREES = ("dp", "tp", "pp", "vpp", "cp", "ep", "replicas", "pipeline_stage")

BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "nf4": 0.5}
"""Of one value; what 8-bit and 4-bit formats keep besides is in ``states``."""


@dataclass(frozen=True, slots=True)
class Dims:
    """A setup with its counts laid open."""

    setup: Setup
    seq: Number
    micro_batch: Number
    accumulation: Number
    dp: Number
    tp: Number
    pp: Number
    vpp: Number
    cp: Number
    ep: Number
    replicas: Number
    stage: Number
    stage_layers: Number = 0
    """Where layers are not spread evenly over the stages; 0: they are."""

    @property
    def model(self) -> ModelShape:
        return self.setup.model

    @property
    def recipe(self) -> str:
        return self.setup.recipe

    @property
    def tokens(self) -> Number:
        """Of one micro-batch on this rank."""
        return self.seq * self.micro_batch / self.cp

    @property
    def layers(self) -> Number:
        """On this stage; the first stages hold what does not divide."""
        return choose(self.stage_layers > 0, self.stage_layers, up(self.model.layers / self.pp))

    @property
    def dense_layers(self) -> Number:
        """Layers of this stage without experts: the model's first ones lie on its first stages, of
        interleaved ones in their first pieces.
        """
        if not self.model.experts:
            return self.layers
        piece = self.layers / self.vpp
        first = least(most(self.model.first_dense_layers - self.stage * piece, 0), piece)
        routed = moe_layers(self.model) / max(self.model.layers - self.model.first_dense_layers, 1)
        return first + (self.layers - first) * (1 - routed)

    @property
    def shards(self) -> Number:
        """Ranks that share what sharding splits: data and context parallel, no HSDP replicas."""
        return self.dp * self.cp / self.replicas

    @property
    def expert_shards(self) -> Number:
        """Of an expert's parameters: those ranks that hold the same experts."""
        return most(self.dp * self.cp * self.tp / (self.ep * self.replicas * self.expert_tp), 1)

    @property
    def expert_tp(self) -> Number:
        """Tensor parallelism inside an expert."""
        return expert_tensor_parallel(self)

    @property
    def etp(self) -> int:
        """The same as it is given; 0: it is not."""
        return self.setup.parallel.etp

    @property
    def first(self) -> Number:
        """1 on the first stage, else 0."""
        return true(self.stage == 0)

    @property
    def last(self) -> Number:
        """1 on the last stage, else 0."""
        return true(self.stage == self.pp - 1)

    @property
    def compute(self) -> float:
        """Bytes of an activation."""
        return max(BYTES[self.setup.dtype], 2.0)

    @property
    def sequence_parallel(self) -> bool:
        return self.setup.parallel.sequence_parallel

    @property
    def outer_tp(self) -> Number:
        """Ways that tensor parallelism splits between its regions (norms, dropout, residuals)."""
        return self.tp if self.sequence_parallel else 1


def dims(setup: Setup, **arrays: Number) -> Dims:
    """A setup's dims, with ``COUNTS``, ``DEGREES`` and ``stage_layers`` replaced as given."""
    setup = setup.by_engine()
    sizes = {name: arrays.pop(name, getattr(setup, name)) for name in COUNTS}
    sizes |= {name: arrays.pop(name, getattr(setup.parallel, name)) for name in DEGREES}
    sizes["stage_layers"] = arrays.pop("stage_layers", 0)
    if arrays:
        raise TypeError(f"not a count of a setup: {', '.join(sorted(arrays))}")
    sizes["stage"] = sizes.pop("pipeline_stage")
    return Dims(setup=setup, **sizes)
