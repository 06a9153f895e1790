"""From the memory events of a step to what it needs: every storage through the caching allocator,
then sums.

A block may be larger than its request (what would be left over is not split off), and PyTorch
counts the whole block as allocated. So the sizes that the allocator gave out are summed, not those
that were asked for.
"""

from __future__ import annotations

import re
from itertools import accumulate
from operator import neg
from typing import NamedTuple

from gputop_analysis.vram.answer import CATEGORIES, Peak
from gputop_analysis.vram.blocks import UNIT
from gputop_analysis.vram.conf import DEFAULT, AllocatorConf
from gputop_analysis.vram.eventlog import EventLog, kinds_of
from gputop_analysis.vram.quick import Playback
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


class Replay:
    """A log that goes through the allocator, maybe again with less room.

    Args:
        log: events of one or more steps, with all layers (see ``deepen``).
        conf: options of the allocator.
    """

    def __init__(self, log: EventLog, conf: AllocatorConf = DEFAULT) -> None:
        self.log = log
        self.conf = conf
        self._kinds = kinds_of(log)
        self._blocks = [UNIT * max(-(-size // UNIT), 1) for size in self._kinds.bytes]
        self._quick: Playback | None = None

    def played(self, capacity: int | None = None) -> Replayed:
        """With segments that take at most ``capacity`` bytes; None: no limit."""
        expandable = self.conf == EXPANDABLE and capacity is None
        if self.conf != DEFAULT and not expandable:
            return _exact(self.log, self.conf, capacity)
        log, quick = self.log, self._playback(expandable)
        played_ = quick.play(None if capacity is None else capacity // UNIT)
        taken = list(map(self._blocks.__getitem__, self._kinds.of))
        for storage, size in played_.whole.items():
            taken[storage] = UNIT * size
        if played_.oom:
            events = log.events[: log.events.index(played_.oom)]
        else:
            events = log.events
        if played_.whole or played_.oom:
            allocated = _running(events, taken)
        else:
            allocated = self._running()
        then = 0
        if played_.at_most:
            then = allocated[events.index(played_.at_most)]
        reserved = UNIT * played_.reserved
        return Replayed(taken, events, allocated, reserved, then, played_.retries, played_.oom)

    def least(self) -> int:
        """Bytes allocated at the peak with blocks as large as asked for: no less is reserved."""
        return max(self._running(), default=0)

    def reserved(self) -> int:
        """The most bytes that segments take, where they may take as many as they want."""
        if self.conf not in (DEFAULT, EXPANDABLE):
            return self.played().reserved
        return UNIT * self._playback(self.conf == EXPANDABLE).play().reserved

    def runs_in(self, capacity: int) -> bool:
        """Whether segments that take so many bytes are enough."""
        if self._quick is None or self.conf != DEFAULT:
            return not self.played(capacity).oom
        return not self._quick.play(capacity // UNIT).oom

    def _playback(self, expandable: bool) -> Playback:
        if self._quick is None:
            kinds, units = self._kinds, [size // UNIT for size in self._blocks]
            self._quick = Playback(kinds.of, units, kinds.stream, self.log.events, expandable)
        return self._quick

    def _running(self) -> list[int]:
        """Allocated after each event, if each block is as large as was asked for."""
        return _running(self.log.events, list(map(self._blocks.__getitem__, self._kinds.of)))


def replay(log: EventLog, conf: AllocatorConf = DEFAULT, capacity: int | None = None) -> Replayed:
    """Play a log once; ``capacity`` is what segments may take, in bytes."""
    return Replay(log, conf).played(capacity)


def _running(events: list[int], sizes: list[int]) -> list[int]:
    """The sum of what lives after each event."""
    # so that the index of a free event gives what it frees
    signed = sizes + list(map(neg, reversed(sizes[1:])))
    return list(accumulate(map(signed.__getitem__, events)))


def _exact(log: EventLog, conf: AllocatorConf, capacity: int | None) -> Replayed:
    from gputop_analysis.vram.allocator import (
        Allocator,
        OutOfMemoryError,
    )  # most estimates do without

    allocator = Allocator(conf, capacity)
    sizes, streams = log.bytes, log.stream
    blocks: list = [None] * len(sizes)
    malloc, free, played, oom = allocator.malloc, allocator.free, 0, 0
    try:
        for event in log.events:
            if event > 0:
                blocks[event] = malloc(sizes[event], streams[event])
            else:
                free(blocks[-event])
            played += 1
    except OutOfMemoryError:
        oom = log.events[played]
    taken = [UNIT * block.size if block else 0 for block in blocks]
    stats = allocator.stats
    reached = stats.peak_reserved, stats.allocated_at_peak_reserved
    events = log.events[:played]
    return Replayed(taken, events, _running(events, taken), *reached, stats.retries, oom)


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
    return summary(log, replay(log, conf, capacity), tier)


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
