"""Checks of a live tick: those with news, half of the silent, a quarter of the settled."""

from __future__ import annotations

from gputop_analysis.findings.registry import CATALOGUE, Spec, as_list
from gputop_analysis.model import Finding
from gputop_analysis.view import RunView

SETTLED_AFTER = 10
"""Looks in a row with the same findings on the same ranks and lines; half as many with none."""
EVERY = 4
"""Ticks between looks of a settled check: its window of 1000 steps moves little."""


class Turns:
    """Remembers what each check said last.

    A check that finds something is made at each tick, one that finds nothing at every other, until
    it has given the same answer for ten ticks; then at every fourth, until it gives another one.
    What reports a fact (a crash, a NaN) is always looked at. So what a check says is at most three
    ticks old, and all have been asked within any four ticks.
    """

    def __init__(self) -> None:
        self._said: dict[str, list[Finding]] = {}
        self._alike: dict[str, int] = {}
        self._tick = 0

    def look(self, view: RunView) -> list[Finding]:
        """What all checks say, those that are due now, the others when it was last their turn."""
        for index, spec in enumerate(CATALOGUE.values()):
            if self._due(spec, index * EVERY // len(CATALOGUE)):
                self._ask(spec, view)
        self._tick += 1
        return [finding for spec in CATALOGUE.values() for finding in self._said.get(spec.id, ())]

    def _due(self, spec: Spec, turn: int) -> bool:
        """Neighbours in the catalogue share computations on a view, so take turns together."""
        if spec.immediate:
            return True
        alike, silent = self._alike.get(spec.id, 0), not self._said.get(spec.id)
        if alike >= (SETTLED_AFTER // 2 if silent else SETTLED_AFTER):
            return self._tick % EVERY == turn
        return not silent or self._tick % 2 == turn // (EVERY // 2)

    def _ask(self, spec: Spec, view: RunView) -> None:
        findings = as_list(spec.check(view))
        same = spec.id in self._said and {finding.key for finding in findings} == {
            finding.key for finding in self._said[spec.id]
        }
        self._alike[spec.id] = self._alike.get(spec.id, 0) + 1 if same else 1
        self._said[spec.id] = findings
