"""What the Budget screen shows."""

from __future__ import annotations

from dataclasses import dataclass

from gputop.feed.plots import Trouble
from gputop.feed.snapshot import Snapshot
from gputop.feed.window import window_of
from gputop_analysis.budget import Budget, budget
from gputop_analysis.energy import Energy, energy
from gputop_analysis.goodput import Goodput, goodput
from gputop_analysis.view import RunView
from gputop_probes.record.reader import RunRecord


@dataclass(frozen=True, slots=True)
class BudgetPageData:
    """The budget, and of which part of the run; the goodput is of the whole session."""

    budget: Budget
    of: str
    goodput: Goodput | None = None
    energy: Energy | None = None


@dataclass(frozen=True)
class BudgetLoader:
    """Reads the budget."""

    def __call__(self, record: RunRecord, snapshot: Snapshot) -> BudgetPageData | Trouble:
        steps, words = window_of(record, snapshot)
        view = RunView(record, steps)
        computed = budget(view)
        if not computed.wall_ns:
            return Trouble("Known once a rank has trained a step.")
        return BudgetPageData(computed, words, goodput(record), energy(view))
