"""The memory events of a traced step: what the trace writes and the allocator replays.

A gzipped JSON file, since the tracing interpreter may have nothing but torch:

``{"format": 1, "meta": {...}, "strings": [...], "storages": [[bytes, stream, category, operator, module, layer], ...],
"events": [...], "marks": [[position, phase, step], ...]}``

Storage ``i`` (counted from 1) is allocated by the event ``i`` and freed by ``-i``. ``category``, ``operator`` and
``module`` are indices into ``strings``; ``layer`` is the index of the repeated layer that a storage belongs to, or -1.
``marks`` say at which position of ``events`` a phase of a step begins: ``init``, ``forward``, ``loss``, ``backward``,
``clip``, ``optimizer``, ``zero_grad``. ``meta`` holds ``versions``, ``setup``, ``layers`` (how many repeated layers the
trace ran with) and ``notes``.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

FORMAT = 1
MANY = 3
"""Layers whose storages are freed in one go, from which on it is no layer's own doing."""


@dataclass(frozen=True, slots=True)
class EventLog:
    """Columns over storages (index 0 is a dummy, so that ids are indices) and the signed events in order."""

    bytes: npt.NDArray[np.int64]
    stream: npt.NDArray[np.int32]
    category: npt.NDArray[np.int32]
    operator: npt.NDArray[np.int32]
    module: npt.NDArray[np.int32]
    layer: npt.NDArray[np.int32]
    events: npt.NDArray[np.int32]
    marks: tuple[tuple[int, str, int], ...]
    strings: tuple[str, ...]
    meta: dict[str, Any] = field(default_factory=dict)


def parse(document: dict[str, Any]) -> EventLog:
    """The log of a decoded document.

    Raises:
        ValueError: not of this format.
    """
    if document.get("format") != FORMAT:
        raise ValueError(f"a memory trace of format {document.get('format')}, this gputop reads {FORMAT}")
    rows = np.asarray([[0, 0, 0, 0, 0, -1], *document["storages"]], dtype=np.int64).reshape(-1, 6)
    stream, category, operator, module, layer = (rows[:, column].astype(np.int32) for column in range(1, 6))
    events = np.asarray(document["events"], dtype=np.int32)
    marks = tuple((int(at), str(phase), int(step)) for at, phase, step in document["marks"])
    strings, meta = tuple(document["strings"]), document.get("meta", {})
    return EventLog(rows[:, 0], stream, category, operator, module, layer, events, marks, strings, meta)


def ordered(log: EventLog) -> EventLog:
    """Where storages of many layers are freed at once, in the order in which they were made.

    Autocast drops its cached casts in the order of a hash table, another one in each process. The allocator ends in the
    same state whatever the order, but a few layers can stand for all only where each run gives the same events.
    """
    events = log.events.copy()
    edges = np.flatnonzero(np.diff(np.concatenate([[False], events < 0, [False]]).astype(np.int8)))
    for start, end in zip(edges[::2], edges[1::2], strict=True):
        run = events[start:end]
        if len(run) >= MANY and len(np.unique(log.layer[-run])) >= MANY:
            events[start:end] = -np.sort(-run)
    return replace(log, events=events)


def load(path: Path) -> EventLog:
    """The log in a file."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return ordered(parse(json.load(lines)))
