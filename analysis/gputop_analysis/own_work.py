"""What gputop's one-off work took of the training: reaching the recorder, closer looks."""

from __future__ import annotations

from typing import NamedTuple

from gputop_agent import wire
from gputop_analysis.series import Array
from gputop_analysis.view import RunView


class OwnWork(NamedTuple):
    """Milliseconds inside the steps of the rank where it took longest."""

    set_up_ms: float
    """In the first step of a process."""
    later_ms: float


def own_work(view: RunView) -> OwnWork | None:
    """None before any step."""
    return max(
        (_of(series.rows) for series in view.per_rank.values() if len(series.rows)),
        key=sum,
        default=None,
    )


def _of(rows: Array) -> OwnWork:
    first = (rows["flags"] & wire.F_FIRST) != 0
    spent = rows["agent_ns"] / 1e6
    return OwnWork(float(spent[first].sum()), float(spent[~first].sum()))
