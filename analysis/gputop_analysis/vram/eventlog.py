"""The memory events of a traced step: what the trace writes and the allocator replays.

A gzipped JSON file, since the tracing interpreter may have nothing but torch:

``{"format": 1, "meta": {...}, "strings": [...], "storages": [[bytes, stream, category, operator,
module, layer], ...], "events": [...], "marks": [[position, phase, step], ...]}``

Storage ``i`` (counted from 1) is allocated by the event ``i`` and freed by ``-i``. ``category``,
``operator`` and ``module`` are indices into ``strings``; ``layer`` is the index of the repeated
layer that a storage belongs to, or -1. ``marks`` say at which position of ``events`` a phase of a
step begins: ``init``, ``forward``, ``loss``, ``backward``, ``clip``, ``optimizer``, ``zero_grad``.
``meta`` holds ``versions``, ``setup``, ``layers`` (how many repeated layers the trace ran with) and
``notes``.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import neg
from pathlib import Path
from typing import Any

FORMAT = 1
REMEMBERED = 32
DUMMY = (0, 0, 0, 0, 0, -1)
"""The columns of a storage that is none."""
MANY = 3
"""Layers whose storages are freed in one go, from which on it is no layer's own doing."""


@dataclass(slots=True)
class Known:
    """What was found out of the events of a log, whatever their sizes."""

    live: dict[int, set[int]] = field(default_factory=dict)
    held: dict[tuple[str, int], dict[int, list[int]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EventLog:
    """Columns over storages (index 0 is a dummy, so that ids are indices) and the signed events in
    order.

    Plain lists: importing NumPy takes longer than an estimate.
    """

    bytes: list[int]
    stream: list[int]
    category: list[int]
    operator: list[int]
    module: list[int]
    layer: list[int]
    events: list[int]
    marks: tuple[tuple[int, str, int], ...]
    strings: tuple[str, ...]
    meta: dict[str, Any] = field(default_factory=dict)
    known: Known = field(default_factory=Known, compare=False, repr=False)
    """Logs of the same events with other sizes share it."""

    def live(self, count: int) -> set[int]:
        """The storages that are there after the first ``count`` events."""
        live = self.known.live
        if count not in live:
            if len(live) >= REMEMBERED:
                live.clear()
            met = set(self.events[:count])
            live[count] = met.difference(map(neg, met))
        return live[count]

    def held(self, by: str, count: int) -> dict[int, list[int]]:
        """The storages that are there after the first ``count`` events, by one of the columns."""
        remembered = self.known.held
        if (by, count) not in remembered:
            if len(remembered) >= REMEMBERED:
                remembered.clear()
            column, by_key = getattr(self, by), {}
            for storage in self.live(count):
                by_key.setdefault(column[storage], []).append(storage)
            remembered[by, count] = by_key
        return remembered[by, count]

    def played(self, events: list[int], **changes: Any) -> EventLog:
        """The same with other events."""
        return replace(self, events=events, known=Known(), **changes)


def parse(document: dict[str, Any]) -> EventLog:
    """The log of a decoded document.

    Raises:
        ValueError: not of this format.
    """
    if document.get("format") != FORMAT:
        raise ValueError(
            f"a memory trace of format {document.get('format')}, this gputop reads {FORMAT}"
        )
    columns = [list(map(int, column)) for column in zip(DUMMY, *document["storages"], strict=True)]
    marks = tuple((int(at), str(phase), int(step)) for at, phase, step in document["marks"])
    events, strings = list(map(int, document["events"])), tuple(document["strings"])
    return EventLog(
        *columns, events=events, marks=marks, strings=strings, meta=document.get("meta", {})
    )


def ordered(log: EventLog) -> EventLog:
    """Where storages of many layers are freed at once, in the order in which they were made.

    Autocast drops its cached casts in the order of a hash table, another one in each process. The
    allocator ends in the same state whatever the order, but a few layers can stand for all only
    where each run gives the same events.
    """
    events: list[int] = []
    for frees, run in groupby(log.events, lambda event: event < 0):
        order = list(run)
        if frees and len(order) >= MANY and len({log.layer[-event] for event in order}) >= MANY:
            order.sort(reverse=True)
        events += order
    return log.played(events)


def load(path: Path) -> EventLog:
    """The log in a file."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return ordered(parse(json.load(lines)))
