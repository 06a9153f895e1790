"""What a log's storages hold by category, without the allocator's rounding."""

from __future__ import annotations

from gputop_analysis.vram.estimate import LASTING
from gputop_analysis.vram.eventlog import EventLog

KEPT = "activations"
"""All that a forward leaves alive for the backward: activations, logits and loss."""


def most(log: EventLog) -> dict[str, int]:
    """Bytes of ``LASTING`` at their most, and of ``KEPT``, what the last forward left alive."""
    live = dict.fromkeys(log.strings, 0)
    by_category: dict[str, int] = dict.fromkeys(LASTING, 0)
    begins, ends = (_last(log, phase) for phase in ("forward", "backward"))
    before = 0
    for at, event in enumerate(log.events):
        if at == begins:
            before = _passing(live)
        elif at == ends:
            by_category[KEPT] = max(_passing(live) - before, 0)
        storage = abs(event)
        name = log.strings[log.category[storage]]
        if event > 0:
            live[name] += log.bytes[storage]
        else:
            live[name] += -log.bytes[storage]
        if name in LASTING:
            by_category[name] = max(by_category[name], live[name])
    return by_category


def _last(log: EventLog, phase: str) -> int:
    return max((at for at, name, _ in log.marks if name == phase), default=-1)


def _passing(live: dict[str, int]) -> int:
    """Of a step's own; what a library keeps for good, as cuBLAS's workspace, is no part."""
    return sum(size for name, size in live.items() if name not in (*LASTING, "master_weights"))
