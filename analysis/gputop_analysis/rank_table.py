"""Ranks side by side, as columns: what a screen of up to a thousand ranks shows and sorts.

The rank that waits least sets the step: it is the critical path of that step. Whether it is always
the same one, and whether that is more than chance, is judged as for the straggler findings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from gputop_agent import wire
from gputop_analysis.culprit import Culprit, find_culprit
from gputop_analysis.series import RankSeries
from gputop_analysis.step_parts import OWN_PHASES
from gputop_analysis.view import RunView, once_per_view
from gputop_analysis.waits import Waits, hidden_wait_ms, mean_wait_ms, straggling_shares, waits

Array = npt.NDArray[Any]

Pattern = Literal["persistent", "rotating", "balanced", "unknown"]

ROTATING_RATIO = 1.05
"""Slowest rank of a step against the median one, from which ranks taking turns are uneven."""

MIN_EXCESS_SHARE = 0.01
"""Of the step: a smaller difference between ranks is not shown as one."""

_SUMMED = tuple(f"{phase}_ns" for phase in wire.PHASES)


@dataclass(frozen=True)
class RankTable:
    """One entry a rank in every column, in the order of ``ranks``. Times are means over the steps
    of the window that every table averages (``RankSeries.averaged``), so that step = compute +
    wait.
    """

    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    steps: Array
    """Steps done in the window."""
    step_ms: Array
    """Mean wall time per step."""
    compute_ms: Array
    """The same without waiting for other ranks; NaN where that is not measured."""
    wait_ms: Array
    """Mean waiting for other ranks per step (``waits.mean_wait_ms``); NaN: not measured."""
    phases_ms: dict[str, Array]
    """By phase of ``wire.PHASES``; backward without its waiting where that is known."""
    excess_phase: tuple[str, ...]
    """The phase in which a rank most exceeds the median rank; empty: in none."""
    excess_ms: Array
    """By how much."""
    slowest_share: Array
    """Share of the steps that this rank set; NaN where not measured."""
    comm_share: Array
    """Exposed communication and waiting / wall time, 0 to 1; NaN where not measured."""
    critical_path: Array
    """Rank that set each step (or bucket of folded steps), oldest first; empty: not measured."""
    culprit: int | None
    """The persistently slow rank."""
    cause: str
    """The phase in which the culprit takes longer; empty without one."""
    pattern: Pattern
    """``persistent``: one rank is slow; ``rotating``: another each time; ``balanced``: neither."""
    load_imbalance: float
    """(largest compute / mean compute) - 1 over the ranks' means; NaN where not measured."""
    exposed_comm_ms: float
    """Waiting left were no rank late, mean of ranks: ``communication`` in the budget."""
    source: str
    """What measured the waiting; empty for nothing."""

    def __len__(self) -> int:
        return len(self.ranks)

    def by(self, column: str) -> Array:
        """Row numbers by a numeric column, largest first; not measured last."""
        return np.argsort(-np.asarray(getattr(self, column), float), kind="stable")


@once_per_view
def rank_table(view: RunView) -> RankTable:
    """All ranks of a view; NaN, not zero, where a record does not tell."""
    ranks = tuple(view.ranks)
    waited = waits(view)
    step_ms, wait_ms = _each(view, _step_ms), _each(view, mean_wait_ms)
    phases = {name: _each(view, _phase_ms, name) for name in wire.PHASES}
    excess_phase, excess_ms = _excess(_steady_phases(view, waited, ranks), step_ms)
    culprit, culprit_rank = None, None
    if waited is not None:
        culprit = find_culprit(waited.ms, _mean(step_ms))
        if culprit is not None:
            culprit_rank = waited.ranks[culprit.column]
    straggling = straggling_shares(view)
    exposed = [
        w * (1 - straggling.get(rank, 0.0))
        for w, rank in zip(wait_ms, ranks, strict=True)
        if w == w
    ]
    return RankTable(
        ranks=ranks,
        hosts=tuple(view.host_of(rank) for rank in ranks),
        steps=np.array([view.per_rank[rank].total_steps() for rank in ranks], np.int64),
        step_ms=step_ms,
        compute_ms=step_ms - wait_ms,
        wait_ms=wait_ms,
        phases_ms=phases,
        excess_phase=excess_phase,
        excess_ms=excess_ms,
        slowest_share=_slowest_share(waited, ranks),
        comm_share=wait_ms / step_ms,
        critical_path=_critical_path(waited),
        culprit=culprit_rank,
        cause=excess_phase[ranks.index(culprit_rank)] if culprit_rank is not None else "",
        pattern=_pattern(waited, culprit, _mean(step_ms)),
        load_imbalance=_imbalance(step_ms - wait_ms),
        exposed_comm_ms=float(np.mean(exposed)) if exposed else float("nan"),
        source=waited.source if waited is not None else "",
    )


def _each(view: RunView, measure: Callable[..., float], *more: str) -> Array:
    """One value a rank."""
    return np.array([measure(view, rank, *more) for rank in view.ranks], np.float64)


def _step_ms(view: RunView, rank: int) -> float:
    return view.per_rank[rank].mean_ms("wall_ns")


def _phase_ms(view: RunView, rank: int, phase: str) -> float:
    """Of backward without the waiting in it, where that is known."""
    value, hidden = view.per_rank[rank].mean_ms(f"{phase}_ns"), hidden_wait_ms(view, rank)
    if phase == "backward" and hidden == hidden:
        return max(0.0, value - hidden)
    return value


def _steady_phases(view: RunView, waited: Waits | None, ranks: tuple[int, ...]) -> dict[str, Array]:
    """Phases over steady steps, to compare ranks: evaluating alone makes none slow."""
    sums, counts = np.zeros((len(ranks), len(wire.PHASES))), np.zeros(len(ranks))
    for row, rank in enumerate(ranks):
        series = view.per_rank[rank]
        sums[row], counts[row] = _sum(series), series.n_steps[series.steady].sum()
    mean_ms = sums / np.maximum(counts[:, None], 1) / 1e6
    mean_ms[counts == 0] = np.nan
    phases: dict[str, Array] = {name: mean_ms[:, column] for column, name in enumerate(wire.PHASES)}
    if waited is not None and waited.backward_compute_ms is not None:
        phases["backward"] = _spread(waited, ranks, waited.backward_compute_ms.mean(axis=0))
    return phases


def _sum(series: RankSeries) -> Array:
    """Sums of each phase. All columns at once where they lie as 8-byte words, as they do."""
    rows = series.steady_rows
    columns = [rows.dtype.fields[name][1] / 8 for name in _SUMMED]  # type: ignore[index]
    if len(rows) == 0 or rows.dtype.itemsize % 8 or any(column % 1 for column in columns):
        return np.array([rows[name].sum(dtype=np.float64) for name in _SUMMED])
    words = rows.view(np.int64).reshape(len(rows), -1)
    return words[:, [int(column) for column in columns]].sum(axis=0, dtype=np.float64)


def _mean(values: Array) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else 0.0


def _spread(waited: Waits, ranks: tuple[int, ...], values: Array) -> Array:
    """Values of the ranks whose waits are known, at their places among all ranks."""
    spread = np.full(len(ranks), np.nan)
    spread[np.searchsorted(ranks, waited.ranks)] = values
    return spread


def _excess(phases: dict[str, Array], step_ms: Array) -> tuple[tuple[str, ...], Array]:
    """The phase in which each rank exceeds the median rank most, and by how much."""
    table = np.stack([phases[name] for name in OWN_PHASES])
    if table.shape[1] < 2:
        return ("",) * table.shape[1], np.zeros(table.shape[1])
    # the median of two would halve the difference
    usual = table[:, ::-1] if table.shape[1] == 2 else _median(table)
    excess = np.nan_to_num(table - usual, nan=0.0)
    largest = excess.argmax(axis=0)
    by_ms = excess[largest, np.arange(excess.shape[1])]
    by_ms[~(by_ms > MIN_EXCESS_SHARE * step_ms)] = 0.0
    phases_by_rank = tuple(
        OWN_PHASES[i] if ms > 0 else "" for i, ms in zip(largest, by_ms, strict=True)
    )
    return phases_by_rank, by_ms


def _median(table: Array) -> Array:
    """Of each row's known values, as a column; 0 for none."""
    filled = np.where(np.isnan(table).all(axis=1, keepdims=True), 0.0, table)
    return np.nanmedian(filled, axis=1)[:, None]


def _slowest_share(waited: Waits | None, ranks: tuple[int, ...]) -> Array:
    if waited is None:
        return np.full(len(ranks), np.nan)
    counts = np.bincount(waited.ms.argmin(axis=1), minlength=len(waited.ranks))
    return _spread(waited, ranks, counts / len(waited.ms))


def _critical_path(waited: Waits | None) -> Array:
    if waited is None:
        return np.empty(0, np.int64)
    return np.asarray(waited.ranks)[waited.ms.argmin(axis=1)]


def _pattern(waited: Waits | None, culprit: Culprit | None, step_ms: float) -> Pattern:
    if waited is None:
        return "unknown"
    if culprit is not None:
        return "persistent"
    lead = float((np.median(waited.ms, axis=1) - waited.ms.min(axis=1)).mean())
    slowest = step_ms - float(waited.ms.min(axis=1).mean())
    if slowest > lead > 0 and slowest / (slowest - lead) > ROTATING_RATIO:
        return "rotating"
    return "balanced"


def _imbalance(compute_ms: Array) -> float:
    """Percent imbalance of DeRose et al. 2007, as a fraction: largest / mean - 1."""
    finite = compute_ms[np.isfinite(compute_ms)]
    if len(finite) > 1 and finite.mean() > 0:
        return float(finite.max() / finite.mean() - 1)
    return float("nan")
