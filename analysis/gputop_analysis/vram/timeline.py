"""The course of a step: allocated bytes over its events, the highest of each phase, what each layer holds."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gputop_analysis.vram.eventlog import EventLog

POINTS = 200
_Bytes = npt.NDArray[np.int64]


def by_phase(log: EventLog, allocated: _Bytes) -> dict[str, int]:
    """Highest allocated bytes in each phase, over all steps of the log."""
    highest: dict[str, int] = {}
    for start, end, phase, _ in spans(log, len(allocated)):
        top = int(allocated[start:end].max())
        highest[phase] = max(top, highest.get(phase, 0))
    return highest


def last_step(log: EventLog, allocated: _Bytes) -> tuple[tuple[float, int], ...]:
    """(share of the last step's events, allocated bytes), each point the highest of its part of the step."""
    step = max((number for _, phase, number in log.marks if phase != "init"), default=0)
    own = [span for span in spans(log, len(allocated)) if span[2] != "init" and span[3] == step]
    values = allocated[own[0][0] : own[-1][1]] if own else allocated
    edges = np.arange(min(POINTS, len(values))) * len(values) // min(POINTS, len(values))
    highest = np.maximum.reduceat(values, edges)
    return tuple((round(float(at) / len(values), 4), int(top)) for at, top in zip(edges, highest, strict=True))


def by_layer(log: EventLog, taken: _Bytes) -> tuple[tuple[str, int], ...]:
    """Activation bytes that each repeated layer holds when the backward of the last step begins."""
    starts = [at for at, phase, _ in log.marks if phase == "backward"]
    if not starts or "activations" not in log.strings:
        return ()
    past = log.events[: starts[-1]]
    live = np.bincount(past[past > 0], minlength=len(taken)) - np.bincount(-past[past < 0], minlength=len(taken))
    held = (live > 0) & (log.category == log.strings.index("activations")) & (log.layer >= 0)
    if not held.any():
        return ()
    sums = np.bincount(log.layer[held], weights=taken[held])
    return tuple((f"layer {index}", int(bytes_held)) for index, bytes_held in enumerate(sums))


def spans(log: EventLog, length: int) -> list[tuple[int, int, str, int]]:
    """(start, end, phase, step) of each phase that has events among the first ``length``."""
    ends = [*(at for at, _, _ in log.marks[1:]), length]
    found = ((at, min(end, length), phase, step) for (at, phase, step), end in zip(log.marks, ends, strict=False))
    return [span for span in found if span[0] < span[1]]
