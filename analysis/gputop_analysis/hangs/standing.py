"""What is known of the ranks of a training that stands still, and what is concluded of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from gputop_analysis.hangs.call_order import Call


class ThreadPlace(NamedTuple):
    """A line of the user's that a thread is in."""

    site: str
    function: str
    blocks: tuple[str, ...] = ()
    """Branches and loops around it, the innermost last: ``205 for``."""
    code: str = ""

    @property
    def file(self) -> str:
        """``train.py``."""
        return self.site.rpartition(":")[0]

    @property
    def spot(self) -> str:
        """``train.py:211 main``."""
        return f"{self.site} {self.function}"


@dataclass(frozen=True, slots=True)
class RankStanding:
    """What is known of one rank."""

    calls: tuple[Call, ...] = ()
    """In order of time."""
    places: tuple[ThreadPlace, ...] = ()
    """Innermost first."""
    frame: str = ""
    """Innermost of any code."""
    handled: str = ""
    """``OSError: stale file handle, train.py:40``: the exception whose handler it is in."""
    state: str = ""
    """Of its thread, a letter of ``/proc``."""
    system_call: str = ""
    path: str = ""
    cpu_share: float = 0.0
    """Of a core."""
    phase: str = ""
    step: int = -1
    answered: bool = True
    root: int | None = None
    """The rank that its collective takes from or gives to."""
    left: str = ""
    """``died``, ``ended early`` or ``raised``; empty: it is there."""
    left_ns: int = 0
    left_words: str = ""

    @property
    def pending(self) -> Call | None:
        """The oldest call that has not ended; None where the thread does not wait in one."""
        running = next((call for call in self.calls if not call.done), None)
        if running is None or running.operation.startswith("nccl"):
            return running
        line = self.places[0].code if self.places else ""
        inside = self.frame.startswith("torch/") or ".wait(" in line or not self.frame
        return running if inside else None

    @property
    def is_in_distributed(self) -> bool:
        """Whether its thread stands in Python code of torch's that waits for other ranks."""
        return self.frame.startswith("torch/distributed/")


UNNAMED = "undefined"
"""What torch says of a group that ``new_group`` got no description for."""


@dataclass(frozen=True, slots=True)
class Group:
    """A process group."""

    description: str
    ranks: frozenset[int]

    @property
    def words(self) -> str:
        """``dp group``, ``the default group``, ``group metrics``."""
        name = self.description
        if name in ("", "default_pg"):
            return "the default group"
        if name.startswith("mesh_"):
            return f"the {name.removeprefix('mesh_')} group"
        return f"group {name}" if name != UNNAMED else "a group without a name"


@dataclass(frozen=True, slots=True)
class Cause:
    """Why nobody goes on."""

    kind: str
    rank: int | None
    """None where two differ and neither can be called wrong."""
    words: str
    """One sentence."""
    site: str | None = None
    waiting: str = ""
    """``ranks 0-7 but 5 wait in all_reduce number 31 of the dp group (train.py:40)``."""
    confidence: float = 0.9
    is_at_the_end: bool = False
    """All steps are made, and other ranks have ended well."""


Ranks = Mapping[int, RankStanding]
Groups = Mapping[str, Group]
