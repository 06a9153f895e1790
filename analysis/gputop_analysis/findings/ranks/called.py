"""The collectives that a step calls, by what torch's flight recorder holds of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from gputop_analysis.view import RunView

TINY_BYTES = 4096
"""A metric or two, and no tensor of the model's."""
SMALL_BYTES = 1 << 20
"""Below it a message takes as long as any other."""
ENOUGH_STEPS = 3


class Called(NamedTuple):
    """Of one rank, a step."""

    messages: float
    small: float
    tiny: float
    bytes_sent: float
    exchanged: float
    """Part of the bytes that ranks exchange (``all_to_all``): each sends what is its own alone."""


def called_a_step(view: RunView, rank: int) -> Called | None:
    """None where the recorder holds too few steps, as where it is off."""
    entries, rows = _entries(view, rank), view.per_rank[rank].rows
    if not entries:
        return None
    times = np.asarray([entry["created_ns"] for entry in entries], np.int64)
    sizes = np.asarray([entry.get("bytes") or 0 for entry in entries], np.float64)
    exchanges = np.asarray(["all_to_all" in _operation(entry) for entry in entries])
    at = np.searchsorted(np.asarray(rows["t_end_ns"], np.int64), times)
    counts = np.bincount(at, minlength=len(rows) + 1)[: len(rows)]
    if not counts.any():
        return None
    # what is held begins and ends within a step, and leaves out steps between
    complete = counts >= np.median(counts[counts > 0])
    steps = int(rows["n_steps"][complete].sum())
    if steps < ENOUGH_STEPS:
        return None
    mask = np.append(complete, False)[at]
    sent = float(sizes[mask].sum())
    return Called(
        messages=np.count_nonzero(mask) / steps,
        small=np.count_nonzero(mask & (sizes < SMALL_BYTES)) / steps,
        tiny=np.count_nonzero(mask & (sizes <= TINY_BYTES)) / steps,
        bytes_sent=sent / steps,
        exchanged=float(sizes[mask & exchanges].sum()) / max(1.0, sent),
    )


def _operation(entry: Mapping[str, Any]) -> str:
    return str(entry.get("op")).replace("alltoall", "all_to_all")


def _entries(view: RunView, rank: int) -> list[Mapping[str, Any]]:
    """Each collective once, by time."""
    by_call = {
        (str(entry.get("group")), entry.get("seq")): entry
        for event in view.events("flight_recorder", rank=rank)
        for entry in event.get("entries", ())
        if entry.get("created_ns") and not entry.get("p2p")
    }
    return sorted(by_call.values(), key=lambda entry: entry["created_ns"])
