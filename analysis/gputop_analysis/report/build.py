"""A report in the making: everything that its forms show, judged once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gputop_analysis.bottleneck import bottleneck
from gputop_analysis.budget import Budget, budget
from gputop_analysis.findings import judge_view
from gputop_analysis.goodput import Goodput, goodput
from gputop_analysis.model import Bottleneck, Finding
from gputop_analysis.numerics import Numerics, numerics
from gputop_analysis.overview import RunSummary, Verdict
from gputop_analysis.own_work import OwnWork, own_work
from gputop_analysis.rank_table import RankTable, rank_table
from gputop_analysis.startup import Startup, startup
from gputop_analysis.summary import summarise
from gputop_analysis.verdict import verdict
from gputop_analysis.view import RunView
from gputop_probes.record.reader import RunRecord


@dataclass(frozen=True, slots=True)
class Extra:
    """A section that the user asked for: a comparison with another run, an analysed trace."""

    name: str
    """Key in ``--json``."""
    data: dict[str, Any]
    text: str
    """Plain text, wrapped to the width of the report."""
    html: str = ""
    exit_code: int = 0
    """Exit code where this section is a check that failed; 0: no check, or passed."""


@dataclass
class Report:
    """A run as it stands at the report. Parts are computed once, when asked for."""

    record: RunRecord
    extras: tuple[Extra, ...] = ()
    live: bool = False
    """The run goes on: leave out what only a finished run can tell."""
    baseline: RunRecord | None = None
    """An earlier run of the same thing, for the findings that compare with it."""

    @cached_property
    def view(self) -> RunView:
        """All of the run."""
        view = RunView(self.record, live=self.live)
        view.baseline = self.baseline
        return view

    @cached_property
    def summary(self) -> RunSummary:
        """Counts, rates, phases, ranks, devices."""
        return summarise(self.record)

    @property
    def findings(self) -> list[Finding]:
        """Findings, worst first."""
        return self._judged[0]

    @property
    def explained(self) -> list[Finding]:
        """Findings that another one takes in, with ``absorbed_by`` set."""
        return self._judged[1]

    @cached_property
    def verdict(self) -> Verdict:
        """The headline."""
        return verdict(self.summary, self.findings)

    @cached_property
    def bottleneck(self) -> Bottleneck:
        """Bottleneck: what limits the speed of the run."""
        return bottleneck(self.view, self.findings)

    @cached_property
    def budget(self) -> Budget:
        """Wall time of all ranks by what it was spent on."""
        return budget(self.view)

    @cached_property
    def rank_table(self) -> RankTable | None:
        """Ranks side by side; None for fewer than two."""
        if len(self.view.ranks) > 1:
            return rank_table(self.view)
        return None

    @cached_property
    def goodput(self) -> Goodput | None:
        """Time of the session by what it was good for; None before any step."""
        return goodput(self.record, self.summary.now_ns)

    @cached_property
    def startup(self) -> Startup | None:
        """The way to the first step."""
        return startup(self.record, self.summary.now_ns)

    @cached_property
    def own_work(self) -> OwnWork | None:
        """What gputop's own work took of the steps; None before any step."""
        return own_work(self.view)

    @cached_property
    def numerics(self) -> Numerics | None:
        """Loss, gradient norm, memory of the first rank; None without steps."""
        return numerics(self.view)

    @cached_property
    def _judged(self) -> tuple[list[Finding], list[Finding]]:
        return judge_view(self.view)
