"""Ranks' rare events, by rank; over all of the run, because facts outlive a window."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from gputop_analysis.model import Finding
from gputop_analysis.view import RunView

Event = dict[str, Any]

SPREAD_RANKS = 64


@dataclass
class _Known:
    """Events of a type read so far: a live view asks every second, and events are many."""

    positions: dict[str, int] = field(default_factory=dict)
    by_rank: dict[int, list[Event]] = field(default_factory=dict)


def told(view: RunView, kind: str) -> dict[int, list[Event]]:
    """Events of one type by rank, in the order written, those of the rank's last process only."""
    key = f"told {kind}"
    if key not in view.known:
        by_rank = _read(view, kind)
        view.known[key] = {
            rank: events for rank, events in by_rank.items() if rank in view.per_rank
        }
    return view.known[key]


def told_optimizers(view: RunView, rank: int) -> list[Event]:
    """The events that describe a rank's optimizers, its hello and what it said anew, in order."""
    hellos = (
        event for kind in ("hello", "hello_update") for event in told(view, kind).get(rank, ())
    )
    return [event for event in hellos if event.get("optimizer")]


def _read(view: RunView, kind: str) -> dict[int, list[Event]]:
    # kept with what it was made from
    known_events: _Known = vars(view.record).setdefault(f"_told_{kind}", _Known())
    for name, host in view.record.hosts.items():
        items = host.events.items
        for event in items[known_events.positions.get(name, 0) :]:
            if event["type"] == kind and event.get("rank") is not None:
                events_of_rank = known_events.by_rank.setdefault(event["rank"], [])
                if events_of_rank and events_of_rank[-1].get("pid") != event.get("pid"):
                    events_of_rank.clear()
                events_of_rank.append(event)
        known_events.positions[name] = len(items)
    return known_events.by_rank


def on_ranks(
    view: RunView, kind: str, of_rank: Callable[[int, list[Event]], Finding | None]
) -> Finding | None:
    """What the events of the first rank that has it tell; of no rank where all have it.

    Args:
        view: the run.
        kind: of the events that ``of_rank`` is given, together with their rank.
        of_rank: judges one rank.
    """
    by_rank = told(view, kind)
    findings = (of_rank(rank, events) for rank, events in by_rank.items())
    first = next(filter(None, findings), None)
    if first is None or len(view.ranks) == 1 or len(by_rank) < len(view.ranks):
        return first
    if all(of_rank(rank, by_rank[rank]) for rank in spread(list(by_rank))):
        return replace(first, rank=None)
    return first


def stage_begins(view: RunView, rank: int) -> int:
    """The step at which the newest optimizer began, as that of a student after its teacher's."""
    return max((event["step"] for event in told(view, "optimizer_begins").get(rank, ())), default=0)


def spread(ranks: list[int]) -> list[int]:
    """All ranks, or 64 evenly spread ones: enough for what the code of all ranks does alike."""
    return ranks[:: max(1, -(-len(ranks) // SPREAD_RANKS))]


def parameter_names(names: Iterable[str | None]) -> list[str]:
    """Names of parameters as a guest tells them, with words for those that have none."""
    return [name or "a parameter of no module" for name in names]
