"""What the Ranks screen shows, as plain lists: any of a thousand ranks is a row number."""

from __future__ import annotations

from dataclasses import dataclass

from gputop.feed.plots import Trouble
from gputop.feed.snapshot import Snapshot
from gputop.feed.window import window_of
from gputop_analysis.rank_excess import rank_excess
from gputop_analysis.rank_table import Pattern, RankTable, rank_table
from gputop_analysis.view import RunView
from gputop_probes.record.reader import RunRecord

PATH_AT_MOST = 400


@dataclass(frozen=True, slots=True)
class RanksPageData:
    """One entry a rank in every column; NaN where it was not measured."""

    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    columns: dict[str, list[float]]
    """``step``, ``own``, ``wait``, ``excess`` in ms; ``wait %`` and ``slowest`` 0 to 1."""
    phases_ms: dict[str, list[float]]
    excess_phase: tuple[str, ...]
    culprit: int | None
    cause: str
    pattern: Pattern
    load_imbalance: float
    exposed_comm_ms: float
    source: str
    path: tuple[int, ...]
    """Which rank set each of the newest steps, the newest last."""
    excess_over_steps: dict[int, tuple[float, ...]]
    """Own work of a rank against ``rank_excess.reference``, as 0.3 more, over the steps; empty: not
    told.
    """
    of: str
    """Which part of the run."""

    def __len__(self) -> int:
        return len(self.ranks)


@dataclass(frozen=True)
class RanksLoader:
    """Reads the table of ranks."""

    def __call__(self, record: RunRecord, snapshot: Snapshot) -> RanksPageData | Trouble:
        steps, words = window_of(record, snapshot)
        view = RunView(record, steps)
        if view.ranks:
            return _plain(rank_table(view), _over_steps(view), words)
        return Trouble("Ranks appear with their first step.")


def _over_steps(view: RunView) -> dict[int, tuple[float, ...]]:
    ranks_and_excess = rank_excess(view)
    if ranks_and_excess is None:
        return {}
    ranks, excess, _ = ranks_and_excess
    return dict(zip(ranks, map(tuple, excess.tolist()), strict=True))


def _plain(
    table: RankTable, excess_over_steps: dict[int, tuple[float, ...]], words: str
) -> RanksPageData:
    columns = {
        "step": table.step_ms,
        "own": table.compute_ms,
        "wait": table.wait_ms,
        "excess": table.excess_ms,
    }
    columns |= {"wait %": table.comm_share, "slowest": table.slowest_share}
    return RanksPageData(
        ranks=table.ranks,
        hosts=table.hosts,
        columns={name: values.tolist() for name, values in columns.items()},
        phases_ms={name: values.tolist() for name, values in table.phases_ms.items()},
        excess_phase=table.excess_phase,
        culprit=table.culprit,
        cause=table.cause,
        pattern=table.pattern,
        load_imbalance=table.load_imbalance,
        exposed_comm_ms=table.exposed_comm_ms,
        source=table.source,
        path=tuple(int(rank) for rank in table.critical_path[-PATH_AT_MOST:]),
        excess_over_steps=excess_over_steps,
        of=words,
    )
