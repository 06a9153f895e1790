"""Ways to split one training over GPUs, as arrays: position i of all fields is one."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from gputop_analysis.parallelism.split import (
    Split,
    expert_tensor_parallel,
    fields_of_split,
    sharding,
)

Ints = Floats = Bools = npt.NDArray[Any]
"""What an array holds; NumPy's own types differ between its versions in what arithmetic returns."""


@dataclass(frozen=True, slots=True)
class Layouts:
    """N configurations. Degrees and sizes are at least 1; the world is tp x pp x cp x dp."""

    tp: Ints
    pp: Ints
    vpp: Ints
    cp: Ints
    ep: Ints
    dp: Ints
    micro_batch: Ints
    zero: Ints
    """0: all-reduce; 1, 2: optimizer states (and gradients) sharded; 3: parameters too (FSDP)."""
    recompute: Ints
    """Index into ``RECOMPUTES``."""
    replicas: Ints
    """HSDP, ``zero`` 3: copies, each sharded over dp x cp / replicas ranks; 1: over all."""
    sequence_parallel: Bools
    zero_bubble: Bools
    """Backward in two, weight gradients where a stage waits (ZB-H1; arXiv:2401.10241)."""

    @classmethod
    def of(cls, **values: Any) -> Layouts:
        """Lists or numbers by field; others are 1 (0 for zero, recompute and what is on or off)."""
        switches = {"sequence_parallel", "zero_bubble"}
        off = {"zero", "recompute", *switches}
        filled = [values.get(f.name, 0 if f.name in off else 1) for f in fields(cls)]
        kinds = [bool if f.name in switches else np.int64 for f in fields(cls)]
        arrays = np.broadcast_arrays(
            *(np.atleast_1d(np.asarray(v, k)) for v, k in zip(filled, kinds, strict=True))
        )
        return cls(*arrays)

    def __len__(self) -> int:
        return len(self.tp)

    def take(self, index: Any) -> Layouts:
        """Those at ``index`` (integers or a mask)."""
        return Layouts(*(getattr(self, f.name)[index] for f in fields(self)))

    def row(self, i: int) -> dict[str, int | bool]:
        """One configuration as plain values."""
        return self.take([i]).rows()[0]

    def rows(self) -> list[dict[str, int | bool]]:
        """Each configuration as plain values."""
        names = [f.name for f in fields(self)]
        columns = [getattr(self, name).tolist() for name in names]
        return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]

    @property
    def world(self) -> Ints:
        return self.tp * self.pp * self.cp * self.dp

    def split(self, i: int) -> Split:
        """One configuration as the estimator and the launcher have it."""
        row = self.row(i)
        kinds: dict[str, Any] = {name: row[name] for name in fields_of_split(row)}
        return Split(**kinds, sharding=sharding(int(row["zero"]), int(row["replicas"])))

    @property
    def stage(self) -> Ints:
        """What is sharded, as the stage of ZeRO."""
        return self.zero

    @property
    def per_parameter(self) -> Bools:
        """Whether parameters are sharded one by one: the planner's stage 3 is FSDP2."""
        return self.zero == 3

    @property
    def etp(self) -> int:
        """Tensor parallelism inside an expert as it is given: it never is."""
        return 0

    @property
    def expert_tp(self) -> Ints:
        """Tensor parallelism inside an expert."""
        return expert_tensor_parallel(self)

    @property
    def shards(self) -> Floats:
        """Ranks that share what ``zero`` shards."""
        return self.dp * self.cp / self.replicas

    def micro_batches(self, global_batch: int) -> Floats:
        """How many micro-batches a replica runs for one optimizer step."""
        return np.maximum(global_batch / (self.micro_batch * self.dp), 1.0)
