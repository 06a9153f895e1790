"""From the memory events of a step to what it needs: every storage through the caching allocator,
then sums.

A block may be larger than its request (what would be left over is not split off), and PyTorch
counts the whole block as allocated. So the sizes that the allocator gave out are summed, not those
that were asked for.
"""

from __future__ import annotations

import contextlib
import re
from itertools import accumulate
from operator import neg
from typing import Any, NamedTuple

from gputop_analysis.vram.allocator import Allocator, Block, OutOfMemoryError
from gputop_analysis.vram.answer import CATEGORIES, Peak
from gputop_analysis.vram.blocks import UNIT
from gputop_analysis.vram.conf import DEFAULT, AllocatorConf
from gputop_analysis.vram.eventlog import EventLog
from gputop_analysis.vram.timeline import by_layer, by_phase, last_step

_INDEX = re.compile(r"(?<=\.)\d+(?=\.|$)")


EXPANDABLE = DEFAULT._replace(expandable_segments=True)


class Replayed(NamedTuple):
    """A log after the allocator; bytes."""

    taken: list[int]
    """The block that each storage got; index 0 is a dummy."""
    events: list[int]
    """Those that were played: all, or up to the one that ran out of memory."""
    allocated: list[int]
    """After each event."""
    reserved: int
    """The most."""
    allocated_then: int
    """Allocated when the most was reserved."""
    retries: int = 0
    oom: int = 0
    """The storage for which there was no memory; 0: none."""


class Replay(NamedTuple):
    """A log that goes through the allocator, maybe again with less room."""

    log: EventLog
    """Events of one or more steps, with all layers (see ``deepen``)."""
    conf: AllocatorConf = DEFAULT

    def played(self, capacity: int | None = None) -> Replayed:
        """With segments that take at most ``capacity`` bytes; None: no limit."""
        allocator, blocks = self._play(capacity)
        log = self.log
        taken = [
            UNIT * block.size if block else self.conf.round_size(nbytes)
            for block, nbytes in zip(blocks, log.bytes, strict=True)
        ]
        stats = allocator.stats
        oom, events = 0, log.events
        if stats.ooms:
            oom = next(event for event in events if event > 0 and blocks[event] is None)
            events = events[: events.index(oom)]
        return Replayed(
            taken=taken,
            events=events,
            allocated=_running(events, taken),
            reserved=stats.peak_reserved,
            allocated_then=stats.allocated_at_peak_reserved,
            retries=stats.retries,
            oom=oom,
        )

    def least(self) -> int:
        """Bytes allocated at the peak with blocks as large as asked for: no less is reserved."""
        sizes = [UNIT * (-(-nbytes // UNIT) or 1) for nbytes in self.log.bytes]
        return max(_running(self.log.events, sizes), default=0)

    def reserved(self) -> int:
        """The most bytes that segments take, where they may take as many as they want."""
        allocator, _ = self._play(None)
        return UNIT * allocator.peak_reserved

    def runs_in(self, capacity: int) -> bool:
        """Whether segments that take so many bytes are enough."""
        allocator, _ = self._play(capacity)
        return not allocator.ooms

    def _play(self, capacity: int | None) -> tuple[Allocator, list[Block | None]]:
        """All events, or those before one that runs out of memory; the block of each storage."""
        allocator = Allocator(self.conf, capacity)
        malloc, free = allocator.malloc, allocator.free
        sizes, streams = self.log.bytes, self.log.stream
        blocks: list[Any] = [None] * len(sizes)
        with contextlib.suppress(OutOfMemoryError):
            for event in self.log.events:
                if event > 0:
                    blocks[event] = malloc(sizes[event], streams[event])
                else:
                    free(blocks[-event])
        return allocator, blocks


def _running(events: list[int], sizes: list[int]) -> list[int]:
    """The sum of what lives after each event."""
    # so that the index of a free event gives what it frees
    signed = sizes + list(map(neg, reversed(sizes[1:])))
    return list(accumulate(map(signed.__getitem__, events)))


def peak(
    log: EventLog, tier: str = "trace", conf: AllocatorConf = DEFAULT, capacity: int | None = None
) -> Peak:
    """What a log needs.

    Args:
        log: events of one or more steps, with all layers (see ``deepen``).
        tier: what made the log.
        conf: options of the allocator.
        capacity: bytes that segments may take; None: as many as they want.

    Raises:
        ValueError: the log allocates nothing.
    """
    return summary(log, Replay(log, conf).played(capacity), tier)


def summary(log: EventLog, played: Replayed, tier: str) -> Peak:
    """What a log needs, once it was played.

    Raises:
        ValueError: the log allocates nothing.
    """
    allocated = played.allocated
    if not allocated:
        raise ValueError("the trace holds no memory events")
    top = allocated.index(max(allocated))
    return Peak(
        tier=tier,
        allocated=allocated[top],
        reserved=played.reserved,
        breakdown=_breakdown(log, played, top),
        operation=operation(log, top),
        phases=by_phase(log, allocated),
        timeline=last_step(log, allocated),
        layers=by_layer(log, played.taken),
        sources=_sources(log),
        notes=tuple(str(note) for note in log.meta.get("notes", ())),
        fragmentation=played.reserved - played.allocated_then,
        retries=played.retries,
        oom=operation(log, len(played.events)) if played.oom else "",
    )


def operation(log: EventLog, at: int) -> str:
    """The operation of an event, as ``phase: module: operator``, where known."""
    storage = abs(log.events[at])
    phase = next((name for start, name, _ in reversed(log.marks) if start <= at), "")
    module, layer = log.strings[log.module[storage]], log.layer[storage]
    if layer >= 0:  # a layer that was repeated bears the name of the one that was traced
        module = _INDEX.sub(str(layer), module, count=1)
    parts = (phase, module, log.strings[log.operator[storage]])
    return ": ".join(part for part in parts if part)


def _breakdown(log: EventLog, played: Replayed, top: int) -> dict[str, int]:
    """Bytes by category of the storages that live after the event ``top``."""
    taken = played.taken
    bytes_by_category = {
        index: sum(map(taken.__getitem__, storages))
        for index, storages in sorted(log.held("category", top + 1).items())
    }
    sums = {log.strings[index]: size for index, size in bytes_by_category.items() if size}
    return {name: sums[name] for name in CATEGORIES if name in sums} | sums


def _sources(log: EventLog) -> tuple[str, ...]:
    versions = log.meta.get("versions") or {}
    if versions:
        return (
            "traced with " + ", ".join(f"{name} {version}" for name, version in versions.items()),
        )
    return ()
