"""Findings while a run goes on: they neither flicker nor linger."""

from __future__ import annotations

import numpy.ma  # noqa: F401  (np.median loads it at its first call: 10 ms that would be in the first tick)

from gputop_analysis.findings import sorted_out
from gputop_analysis.findings.precedence import ordered
from gputop_analysis.findings.registry import CATALOGUE
from gputop_analysis.findings.shares import ENOUGH_STEPS
from gputop_analysis.findings.turns import EVERY, Turns
from gputop_analysis.live_ranks import CHOSEN, live_ranks, told_ranks
from gputop_analysis.model import Finding
from gputop_analysis.view import RunView
from gputop_probes.record.reader import RunRecord

Key = tuple[str, int | None, int | None, str | None]

APPEAR_AFTER = 3
GONE_AFTER = 5
WINDOW_STEPS = 1000


class LiveFindings:
    """Evaluates a growing record again and again; the caller refreshes the record.

    A finding appears after three evaluations in a row that see it and goes after five that do not.
    Facts (a crash, a hang, a NaN) appear at once. Checks whose answer does not change take turns,
    see ``Turns``.

    Attributes:
        settled: whether enough was seen to call a run healthy: three evaluations with enough steady
            steps, after which nothing above ``info`` was still waiting to appear.
    """

    def __init__(self, record: RunRecord, window_steps: int = WINDOW_STEPS):
        self.record = record
        self.window_steps = window_steps
        self._turns = Turns()
        self._ranks: list[int] = []
        self._ticks = 0
        self._judged = 0
        self.settled = False
        self._shown: dict[Key, Finding] = {}
        self._seen: dict[Key, int] = {}
        self._missed: dict[Key, int] = {}

    def tick(self) -> list[Finding]:
        """Evaluate once more and return what is to be shown, worst first."""
        findings = {finding.key: finding for finding in self._evaluate()}
        for key in set(self._seen) - set(findings):
            del self._seen[key]
        for key, finding in findings.items():
            self._seen[key] = self._seen.get(key, 0) + 1
            self._missed.pop(key, None)
            if (
                key in self._shown
                or self._seen[key] >= APPEAR_AFTER
                or CATALOGUE[finding.id].immediate
            ):
                self._shown[key] = finding
        for key in [key for key in self._shown if key not in findings]:
            self._missed[key] = self._missed.get(key, 0) + 1
            if self._missed[key] >= GONE_AFTER:
                del self._shown[key], self._missed[key]
        waiting = any(
            finding.severity != "info"
            for key, finding in findings.items()
            if key not in self._shown
        )
        self.settled = self.settled or (self._judged >= APPEAR_AFTER and not waiting)
        return ordered(list(self._shown.values()))

    def _evaluate(self) -> list[Finding]:
        is_new = not set(told_ranks(self.record)) <= set(self._ranks)
        if self._ticks % EVERY == 0 or len(self._ranks) < CHOSEN or is_new:
            self._ranks = live_ranks(self.record)
        self._ticks += 1
        view = RunView(self.record, self.window_steps, live=True, ranks=self._ranks)
        series = (view.per_rank[rank] for rank in self._ranks if rank in view.per_rank)
        self._judged += any(
            rank_series.n_steps[rank_series.steady].sum() >= ENOUGH_STEPS for rank_series in series
        )
        return sorted_out(view, self._turns.look(view))[0]
