"""One way to run a training: how it is split, over how many nodes, started by which script."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gputop_analysis.parallelism.rules import SPLIT_RULES, STEP_RULES, StepOfSplit, Training, broken
from gputop_analysis.parallelism.split import RECOMPUTES, Split, fields_of_split, sharding
from gputop_analysis.vram.setup import ModelShape


@dataclass(frozen=True, slots=True)
class Strategy:
    """A split with what is trained, on nodes of equal GPUs."""

    nodes: int = 1
    gpus_per_node: int = 8
    split: Split = field(default_factory=lambda: Split(dp=8))
    micro_batch: int = 1
    global_batch: int = 8
    """Sequences an optimizer step sees."""
    seq: int = 2048
    recompute: str = "none"
    """One of ``RECOMPUTES``."""
    dtype: str = "bf16"
    script: str = "train.py"
    arguments: tuple[str, ...] = ()
    model: ModelShape | None = None
    steps: int = 1000
    learning_rate: float = 3e-4

    @classmethod
    def of(cls, nodes: int, gpus_per_node: int, zero: int = 0, **values: Any) -> Strategy:
        """By plain names; those of a split go into it, ``zero`` is its stage (3: FSDP2)."""
        degrees = {name: values.pop(name) for name in fields_of_split(values)}
        degrees.setdefault("dp", 8)
        sharding_kind = sharding(zero, degrees.get("replicas", 1))
        return cls(nodes, gpus_per_node, Split(**degrees, sharding=sharding_kind), **values)

    @classmethod
    def of_layout(
        cls, row: Mapping[str, Any], nodes: int, gpus_per_node: int, **training: Any
    ) -> Strategy:
        """A row of the planner's layouts; ``training`` are the fields that it does not have."""
        values = {name: row[name] for name in row if name != "recompute"}
        return cls.of(
            nodes, gpus_per_node, **values, recompute=RECOMPUTES[int(row["recompute"])], **training
        )

    @property
    def accumulation(self) -> int:
        """Micro-batches of a data-parallel rank for one optimizer step."""
        return max(1, self.global_batch // (self.micro_batch * self.split.dp))

    def check(self) -> None:
        """Nothing for a strategy that some launcher can start.

        Raises:
            ValueError: the rules that it breaks, in words.
        """
        gpus = self.nodes * self.gpus_per_node
        facts = {
            "seq": self.seq,
            "uneven_stages": True,
            "gpus": gpus,
            "global_batch": self.global_batch,
        }
        if self.model:
            training = Training.of(self.model, **facts)
        else:
            training = Training(**facts)
        step = StepOfSplit(self.split, self.micro_batch)
        if wrong := broken(training, step, (*STEP_RULES, *SPLIT_RULES)):
            raise ValueError("; ".join(why for _, why in wrong))


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
