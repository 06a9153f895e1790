"""One way to mend a finding: its words, what the run must have, the setting it moves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from gputop_analysis.findings.facts import Facts
from gputop_analysis.mend import Mend


class RunNeed(NamedTuple):
    """A condition on the run."""

    words: str
    """What the run must have: ``a GPU``."""
    holds: Callable[[Facts], bool]


class MovedSetting(NamedTuple):
    """A setting that an option moves; two in opposite directions contradict each other."""

    name: str
    """``num_workers``, ``torch threads``, ``ranks``."""
    direction: int
    """1: up; -1: down."""


@dataclass(frozen=True, slots=True)
class Option:
    """One way to mend a finding."""

    text: str
    """As the user would type it."""
    needs: tuple[RunNeed, ...] = ()
    wins_ms: float | None = None
    """At most so much a step; None: as much as the finding says."""
    lever: MovedSetting | None = None
    promises: bool = True
    """Whether what it wins can be told beforehand; what only might help promises nothing."""
    assumes: bool = True
    """Whether its words presuppose what they name, not where it asks for that thing."""
    last: bool = False
    """Offered only where nothing else is: where what is asked for is a search."""
    mend: Mend | None = None
    """What in the script's text would do it, where that can be said for certain."""
