"""What a file of another tool shows, whatever its format."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from gputop_analysis.evidence.devices import TracedDevice

if TYPE_CHECKING:
    from gputop_analysis.snapshots.analyse import Memory
    from gputop_analysis.stragglers import StragglerJudgement


class EvidenceError(ValueError):
    """The file cannot be read or is none that is known; the message is one line for the user."""


class Fix(NamedTuple):
    """A change and what it wins at most."""

    fix: str
    worth: str


@dataclass(slots=True)
class Evidence:
    """Result of ``gather``."""

    kind: str
    """In words: ``torch.profiler trace``."""
    files: tuple[str, ...]
    cause: str = "nothing stands out"
    rank: int | None = None
    ranks: tuple[int, ...] = ()
    """All that the cause is told of, where there are several; ``rank`` is the first."""
    host: str | None = None
    slowdown: float | None = None
    """Factor against the same without the cause; None: not to be told."""
    devices: list[TracedDevice] = field(default_factory=list)
    by_worker: dict[str, float] = field(default_factory=dict)
    by_operation: dict[str, float] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    """What was seen, a sentence each."""
    fixes: list[Fix] = field(default_factory=list)
    """What to do about it."""
    unknown: list[str] = field(default_factory=list)
    """What cannot be known from it, a sentence each."""
    what_if: StragglerJudgement | None = None
    memory: Memory | None = None

    def why(self) -> dict[str, Any]:
        """What ``gputop why --json`` prints."""
        if self.what_if is not None:
            return self.what_if.as_data()
        return {
            "cause": self.cause,
            "rank": self.rank,
            "host": self.host,
            "slowdown": self.slowdown,
            "by_worker": self.by_worker,
            "by_stage": {},
            "by_operation": self.by_operation,
        }

    def as_data(self) -> dict[str, Any]:
        """What ``gputop report --json`` prints."""
        evidence: dict[str, Any] = {
            "kind": self.kind,
            "files": list(self.files),
            "devices": [device.as_data() for device in self.devices],
            "findings": self.findings,
            "fixes": [fix._asdict() for fix in self.fixes],
            "unknown": self.unknown,
        }
        if self.memory is not None:
            evidence["memory"] = self.memory.as_data()
        return {"verdict": self.why(), "evidence": evidence}
