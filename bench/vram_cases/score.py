"""How far estimates are from measurements, and how well they tell what fits."""

from __future__ import annotations

import json
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gputop_analysis.units import GIB
from gputop_analysis.vram import formula, intervals
from gputop_analysis.vram.residuals import axes
from gputop_analysis.vram.setup import Setup
from gputop_analysis.vram.tiers import two_stacks
from vram_cases.row import Case

LARGE_HIDDEN = 1024
"""Width from which a test of Megatron-LM is no toy."""
INTERVAL = (5, 95)
"""Percentiles between which nine of ten measurements lie."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An estimate for a case."""

    case: Case
    tier: str = ""
    estimated_gib: float = 0.0
    fits: bool | None = None
    """Whether it is said to fit the case's GPU; None: the GPU is not known."""
    reason: str = ""
    """Why there is no estimate."""

    @property
    def error_pct(self) -> float:
        """Of the measurement."""
        assert self.case.measured_gib
        return 100 * (self.estimated_gib / self.case.measured_gib - 1)


@dataclass(frozen=True, slots=True)
class Run:
    """All rows of one configuration by one metric, which count once: repeated runs, twins in other
    versions.
    """

    source: str
    name: str
    metric: str
    tier: str
    setup: Setup
    error_pct: float
    """Median over the rows."""
    rows: int
    contradicts: bool = False
    """Less was measured than the weights, gradients and states take that it names."""

    @property
    def half(self) -> str:
        """One of two halves, by a hash of what the run is: whether errors are alike in both."""
        return "ab"[zlib.crc32(f"{self.source} {self.name}".encode()) % 2]


def runs(answers: Iterable[Answer]) -> list[Run]:
    """One for each configuration and metric."""
    groups: dict[tuple[str, str, str, str], list[Answer]] = defaultdict(list)
    for answer in answers:
        case = answer.case
        if not answer.reason and case.measured_gib and case.metric:
            groups[case.source, case.run, case.metric, answer.tier].append(answer)
    return [_run(key, found) for key, found in groups.items()]


def _run(key: tuple[str, str, str, str], found: Sequence[Answer]) -> Run:
    setup = found[0].case.setup
    assert setup is not None
    source, name, metric, tier = key
    median = float(np.median([answer.error_pct for answer in found]))
    measured = max(answer.case.measured_gib or 0.0 for answer in found)
    return Run(
        source, name, metric, tier, setup, median, len(found), measured < _lasting_gib(setup)
    )


def _lasting_gib(setup: Setup) -> float:
    """What a rank holds at once when the backward pass ends, of weights, gradients and states.

    0 of a pipeline, whose measured stage may hold less than another; gradients of full training on
    one GPU only.
    """
    if setup.parallel.pp > 1 or two_stacks(setup):
        return 0.0
    held = formula.peak(setup).breakdown
    gradients = (
        intervals.kind(setup) == "full"
        and setup.optimizer != "none"
        and not setup.optimizer_in_backward
    )
    kept = sum(held.get(name, 0) for name in ("weights", "optimizer", "master_weights"))
    return (kept + gradients * held.get("weights", 0)) / GIB


def errors(found: Sequence[Run]) -> dict[str, float | int | None]:
    """Count, median and 90th percentile of the absolute error, and bias (the median error), in
    percent.
    """
    if not found:
        return {
            "runs": 0,
            "rows": 0,
            "median_abs_error_pct": None,
            "p90_abs_error_pct": None,
            "bias_pct": None,
        }
    values = np.array([run.error_pct for run in found])
    return {
        "runs": len(found),
        "rows": sum(run.rows for run in found),
        "median_abs_error_pct": round(float(np.median(abs(values))), 2),
        "p90_abs_error_pct": round(float(np.percentile(abs(values), 90)), 2),
        "bias_pct": round(float(np.median(values)), 2),
    }


def by(found: Sequence[Run], key: Callable[[Run], str]) -> dict[str, dict[str, Any]]:
    """The errors of each group."""
    groups: dict[str, list[Run]] = defaultdict(list)
    for run in found:
        groups[key(run)].append(run)
    return {name: errors(groups[name]) for name in sorted(groups)}


def group(run: Run) -> str:
    """What a run is, as far as memory goes: recipe, what is trained, sharding, checkpointing,
    attention, loss.
    """
    setup = run.setup
    words = [setup.recipe, intervals.kind(setup), setup.parallel.sharding, setup.checkpointing]
    words += [
        setup.attention,
        setup.loss + (" kernel" if setup.kernels and setup.loss == "plain" else ""),
    ]
    words += [setup.optimizer] if setup.optimizer != "adamw" else []
    return ", ".join(words)


def large_megatron(found: Sequence[Run]) -> list[Run]:
    """Distinct tests of Megatron-LM of at least 1024 hidden channels."""
    return [
        run
        for run in found
        if run.setup.recipe == "megatron" and run.setup.model.hidden >= LARGE_HIDDEN
    ]


def fits(answers: Iterable[Answer]) -> dict[str, Any]:
    """Of runs on a known GPU by their outcome: how often what was called out of memory was, and was
    called so.

    A run of several rows counts once. Where a source has no failed runs, precision says nothing.
    """
    outcomes: dict[tuple[str, str, bool], bool] = {}
    for answer in answers:
        if answer.fits is not None and answer.case.oom is not None:
            outcomes[answer.case.source, answer.case.run, answer.case.oom] = answer.fits
    table = Counter((failed, not fit) for (_, _, failed), fit in outcomes.items())
    both, missed, false = table[True, True], table[True, False], table[False, True]
    return {
        "runs": sum(table.values()),
        "oom": both + missed,
        "oom_recall": _share(both, both + missed),
        "oom_precision": _share(both, both + false),
        "fits_recall": _share(table[False, False], table[False, False] + false),
        "fits_precision": _share(table[False, False], table[False, False] + missed),
    }


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 3) if whole else None


def skipped(answers: Iterable[Answer]) -> dict[str, int]:
    """Rows by the reason for which they were not estimated, the most frequent first."""
    return dict(Counter(answer.reason for answer in answers if answer.reason).most_common())


def interval_table(found: Sequence[Run]) -> dict[str, dict[str, tuple[float, float, int]]]:
    """``{tier: {kind: (low, high, runs)}}``: percentiles of how much more was measured than
    estimated, in percent.

    Of what a GPU must have (reserved, or the device total) where enough runs measured that: what is
    allocated comes out closer, and would promise too much. Runs that contradict themselves are left
    out.
    """
    table: dict[str, dict[str, tuple[float, float, int]]] = {}
    sound = [run for run in found if not run.contradicts]
    for tier in sorted({run.tier for run in sound}):
        mine = [run for run in sound if run.tier == tier]
        groups = {"all": mine}
        for run in mine:
            groups.setdefault(intervals.case(run.setup), []).append(run)
        table[tier] = {name: _interval(_held(groups[name])) for name in sorted(groups)}
    return table


def residuals(found: Sequence[Run]) -> dict[str, dict[str, list[float]]]:
    """``{source: {axes: [excess, ...]}}`` in percent, as ``gputop_analysis.vram.residuals`` reads
    them. Runs that contradict themselves are left out.
    """
    table: dict[str, dict[str, list[float]]] = {}
    for run in sorted(found, key=lambda one: one.source):
        if not run.contradicts:
            words = ", ".join(axes(run.setup))
            excess = round(100 * (100 / (100 + run.error_pct) - 1), 1)
            table.setdefault(run.source, {}).setdefault(words, []).append(excess)
    return table


def as_lines(table: dict[str, dict[str, list[float]]]) -> str:
    """Readable, the runs of the same axes a line."""
    sources = []
    for source, runs in table.items():
        lines = ",\n".join(
            f"  {json.dumps(name)}: {json.dumps(runs[name])}" for name in sorted(runs)
        )
        sources.append(f" {json.dumps(source)}: {{\n{lines}\n }}")
    return "{\n" + ",\n".join(sources) + "\n}\n"


def _held(found: Sequence[Run]) -> Sequence[Run]:
    """The runs whose reserved memory or device total was measured; all, where these are too few."""
    held = [run for run in found if run.metric != "allocated"]
    return held if len(held) >= intervals.ENOUGH else found


def _interval(found: Sequence[Run]) -> tuple[float, float, int]:
    excess = [100 * (100 / (100 + run.error_pct) - 1) for run in found]
    low, high = np.percentile(excess, INTERVAL)
    return round(float(low), 1), round(float(high), 1), len(found)


def as_json(table: Any) -> str:
    """Readable, one kind a line."""
    return json.dumps(table, indent=1) + "\n"
