"""One way to run a training: how it is split, over how many nodes, started by which script."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gputop_analysis.vram.setup import ModelShape

_DEGREES = ("tp", "pp", "vpp", "cp", "ep", "dp", "zero", "replicas", "micro_batch")


@dataclass(frozen=True, slots=True)
class Strategy:
    """Degrees are counts of at least 1. The world is ``tp x pp x cp x dp``; ``ep`` is folded into dp x cp."""

    nodes: int = 1
    gpus_per_node: int = 8
    dp: int = 8
    tp: int = 1
    pp: int = 1
    vpp: int = 1
    cp: int = 1
    ep: int = 1
    zero: int = 0
    """0: DDP, 1 and 2: optimizer states (and gradients) sharded, 3: parameters too (FSDP)."""
    replicas: int = 1
    """HSDP: groups of data-parallel ranks that hold a whole copy; only with ``zero`` 3."""
    sequence_parallel: bool = False
    zero_bubble: bool = False
    """A pipeline schedule that fills its bubble with weight gradients."""
    micro_batch: int = 1
    global_batch: int = 8
    """Sequences an optimizer step sees."""
    seq: int = 2048
    recompute: str = "none"
    """``none``, ``selective`` or ``full``."""
    dtype: str = "bf16"
    offload: str = "none"
    """``none``, ``optimizer`` or ``all``."""
    script: str = "train.py"
    arguments: tuple[str, ...] = ()
    model: ModelShape | None = None
    steps: int = 1000
    learning_rate: float = 3e-4

    @classmethod
    def of_layout(cls, row: Mapping[str, Any], nodes: int, gpus_per_node: int, **training: Any) -> Strategy:
        """A row of the planner's layouts; ``training`` are the fields that it does not have."""
        from gputop_analysis.planner.layout import RECOMPUTE

        return cls(
            nodes=nodes,
            gpus_per_node=gpus_per_node,
            **{name: int(row[name]) for name in _DEGREES},
            sequence_parallel=bool(row["sequence_parallel"]),
            zero_bubble=bool(row["zero_bubble"]),
            recompute=RECOMPUTE[int(row["recompute"])],
            **training,
        )

    @property
    def world(self) -> int:
        return self.tp * self.pp * self.cp * self.dp

    @property
    def accumulation(self) -> int:
        """Micro-batches of a data-parallel rank for one optimizer step."""
        return max(1, self.global_batch // (self.micro_batch * self.dp))

    def check(self) -> None:
        """Raises ValueError, in words, for what no launcher can start."""
        if self.world != self.nodes * self.gpus_per_node:
            raise ValueError(
                f"tp x pp x cp x dp = {self.world}, but {self.nodes} node(s) of {self.gpus_per_node} GPUs "
                f"are {self.nodes * self.gpus_per_node}"
            )
        if self.global_batch != self.micro_batch * self.dp * self.accumulation:
            raise ValueError(
                f"a global batch of {self.global_batch} is no multiple of micro-batch {self.micro_batch} x dp {self.dp}"
            )
        if self.zero_bubble and self.pp == 1:
            raise ValueError("a zero-bubble schedule needs pipeline stages (pp above 1)")
        if self.zero == 3 and self.dp % self.replicas:
            raise ValueError(f"{self.replicas} replicas do not divide dp {self.dp}")


class NotPossible(ValueError):
    """This launcher cannot express the strategy; the message says which can."""


@dataclass(frozen=True, slots=True)
class Launch:
    """What to type and what to save first."""

    launcher: str
    command: tuple[str, ...]
    """The words to run on each node (or once, for launchers that reach the others themselves)."""
    files: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The same with stable names."""
        from gputop_analysis.launch.shell import quoted

        return {
            "launcher": self.launcher,
            "command": quoted(self.command),
            "argv": list(self.command),
            "files": self.files,
            "notes": list(self.notes),
        }
