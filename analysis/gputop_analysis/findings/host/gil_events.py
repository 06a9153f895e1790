"""When other Python threads of the training were busy, by the guest's ``threads`` events tell."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import numpy as np

from gputop_analysis.view import Array

_NUMBER = re.compile(r"^Thread-\d+ (?=\()")
"""Python's own name of a thread without one, before its function."""


def cores_used(event: dict[str, Any]) -> float:
    """By the threads of one event."""
    return sum(float(thread.get("cpu_share") or 0) for thread in event.get("threads", ()))


def within(rows: Array, events: list[dict[str, Any]]) -> Array:
    """Mask of the records that ended while another Python thread was busy, as the events tell."""
    begins = np.array([e["t_ns"] - _busy_ns(e) for e in events])
    ends = np.array([e["t_ns"] for e in events])
    order = np.argsort(begins)
    at = np.searchsorted(begins[order], rows["t_end_ns"], side="right") - 1
    return (at >= 0) & (rows["t_end_ns"] <= ends[order][np.maximum(at, 0)])


def without(rows: Array, events: list[dict[str, Any]]) -> Array:
    """Mask of records that ended while none was busy; none after the last look at threads."""
    longest_ns = max(float(e.get("period_ms") or 0) for e in events) * 1e6
    looked_at = rows["t_end_ns"] < max(
        max(e["t_ns"] for e in events), rows["t_end_ns"][-1] - 1.5 * longest_ns
    )
    return ~within(rows, events) & looked_at


def _busy_ns(event: dict[str, Any]) -> float:
    """How long its threads were busy before an event: since the last look, or their begin."""
    ages = [
        float(thread["age_s"]) * 1e9
        for thread in event.get("threads", ())
        if thread.get("age_s") is not None
    ]
    period_ns = float(event.get("period_ms") or 0) * 1e6
    return min(period_ns, max(ages, default=period_ns))


def spent(samples: Array, column: str, rows: Array) -> Array:
    """Growth of a counter of the training thread in each record, interpolated between samples."""
    end, begin = rows["t_end_ns"], rows["t_end_ns"] - rows["wall_ns"]
    t0 = int(samples["t_ns"][0])
    at = [
        np.interp((t - t0).astype(float), (samples["t_ns"] - t0).astype(float), samples[column])
        for t in (end, begin)
    ]
    return at[0] - at[1]


def busiest(events: list[dict[str, Any]]) -> tuple[str, str | None]:
    """Name of the busiest thread, and the line that it was seen at most often; threads that run one
    function, as one an epoch, are one: ``Thread-13 (monitor)`` is called ``(monitor)``.
    """
    time: Counter[str] = Counter()
    sites: dict[str, Counter[str]] = {}
    for event in events:
        for thread in event.get("threads", ()):
            name = _NUMBER.sub("", str(thread.get("name")))
            time[name] += float(thread.get("cpu_share") or 0) * float(event.get("period_ms") or 0)  # type: ignore[assignment]
            if thread.get("site"):
                where = f"{thread['site']} {thread.get('function') or ''}".strip()
                sites.setdefault(name, Counter())[where] += 1
    name = max(time, key=lambda name: time[name])
    return name, sites[name].most_common(1)[0][0] if name in sites else None
