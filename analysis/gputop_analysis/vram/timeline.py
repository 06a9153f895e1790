"""A step's course: allocated bytes over events, the highest by phase, what layers hold."""

from __future__ import annotations

from itertools import pairwise

from gputop_analysis.vram.eventlog import EventLog

POINTS = 200
_Bytes = list[int]


def by_phase(log: EventLog, allocated: _Bytes) -> dict[str, int]:
    """Highest allocated bytes in each phase, over all steps of the log."""
    highest: dict[str, int] = {}
    for start, end, phase, _ in spans(log, len(allocated)):
        top = max(allocated[start:end])
        highest[phase] = max(top, highest.get(phase, 0))
    return highest


def last_step(log: EventLog, allocated: _Bytes) -> tuple[tuple[float, int], ...]:
    """(share of the last step's events, allocated bytes), each the highest of its part."""
    step = max((number for _, phase, number in log.marks if phase != "init"), default=0)
    own_spans = [
        span for span in spans(log, len(allocated)) if span[2] != "init" and span[3] == step
    ]
    if own_spans:
        values = allocated[own_spans[0][0] : own_spans[-1][1]]
    else:
        values = allocated
    parts = min(POINTS, len(values))
    edges = [part * len(values) // parts for part in range(parts + 1)]
    return tuple((round(at / len(values), 4), max(values[at:end])) for at, end in pairwise(edges))


def by_layer(log: EventLog, taken: _Bytes) -> tuple[tuple[str, int], ...]:
    """Activation bytes that each repeated layer holds when the backward of the last step begins."""
    starts = [at for at, phase, _ in log.marks if phase == "backward"]
    if not starts or "activations" not in log.strings:
        return ()
    wanted, sums = log.strings.index("activations"), [0] * (max(log.layer, default=-1) + 1)
    for storage in log.held("category", starts[-1]).get(wanted, ()):
        if log.layer[storage] >= 0:
            sums[log.layer[storage]] += taken[storage]
    while sums and not sums[-1]:
        sums.pop()
    return tuple((f"layer {index}", size) for index, size in enumerate(sums))


def spans(log: EventLog, length: int) -> list[tuple[int, int, str, int]]:
    """(start, end, phase, step) of each phase that has events among the first ``length``."""
    ends = [*(at for at, _, _ in log.marks[1:]), length]
    of_phases = (
        (at, min(end, length), phase, step)
        for (at, phase, step), end in zip(log.marks, ends, strict=False)
    )
    return [span for span in of_phases if span[0] < span[1]]
