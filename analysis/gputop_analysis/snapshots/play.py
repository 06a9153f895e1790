"""A history through the allocator model: as it was recorded, to see that the model is right, and
with other settings.

As recorded, the model starts with the blocks and segments where they lay, gets the addresses that
the driver gave, and decides everything else itself; what it has reserved must be what was recorded,
after every event. With other settings the same requests are played, and the driver's addresses are
the model's own.
"""

from __future__ import annotations

from typing import NamedTuple

from gputop_analysis.snapshots.frames import is_empty_cache
from gputop_analysis.snapshots.history import FREED, GIVEN, RETURNED, GpuHistory
from gputop_analysis.snapshots.load import Event, Segment
from gputop_analysis.vram.allocator import Allocator, Block, OutOfMemoryError
from gputop_analysis.vram.blocks import UNIT
from gputop_analysis.vram.conf import AllocatorConf

_INVENTED = 1 << 42
"""Addresses, in units, that no driver gives."""
_BROKEN = (KeyError, IndexError, ValueError, AssertionError)
"""What the model raises where a damaged file has blocks that overlap."""


class Played(NamedTuple):
    """Result of one play; bytes."""

    peak_reserved: int | None
    """None: the requests do not fit."""
    first_difference: int | None = None
    """Index of the first event after which the model reserved other than was recorded."""


def play_as_recorded(history: GpuHistory, conf: AllocatorConf) -> Played:
    """Play a history with its own settings, and compare after every event."""
    player = _Player(conf, None)
    index, difference, peak = 0, None, 0
    try:
        player.lay_out(history.first_segments)
        peak = player.reserved
        for index, event in enumerate(history.events):
            player.follow(event)
            peak = max(peak, player.reserved)
            if player.reserved != history.reserved[index + 1] and not _within_return(
                history.events, index
            ):
                difference = index if difference is None else difference
    except _BROKEN:
        difference = index if difference is None else difference
    return Played(peak, difference)


def _within_return(events: tuple[Event, ...], index: int) -> bool:
    """Whether pages are given back at once: the model takes the memory from all at the first."""
    following = events[index + 1 : index + 2]
    return events[index].action == "segment_unmap" and any(
        event.action == "segment_unmap" for event in following
    )


def play_with(
    history: GpuHistory,
    conf: AllocatorConf,
    recorded: AllocatorConf,
    capacity: int | None = None,
    keeps_cache: bool = False,
) -> Played:
    """Play the requests of a history with other settings.

    What was in use at its beginning lies where it lay; where segments become expandable or cease to
    be, it is asked for first, in the order of its addresses.

    Args:
        history: the requests.
        conf: settings to play with.
        recorded: settings of the recording.
        capacity: bytes that segments may take; None: no limit.
        keeps_cache: leave calls of ``empty_cache`` out.
    """
    player = _Player(conf, capacity)
    returning = False
    try:
        if conf.expandable_segments == recorded.expandable_segments:
            player.lay_out(history.first_segments)
        else:
            player.ask_for(history.first_segments)
        for event in history.events:
            if event.action in RETURNED:
                by_program = is_empty_cache(event.frames) is not False
                if by_program and not returning and not keeps_cache:
                    player.allocator.empty_cache()
                returning = True
                continue
            returning = False
            if event.action == "alloc":
                player.malloc(event)
            elif event.action in FREED:
                player.free(event)
    except (OutOfMemoryError, *_BROKEN):
        return Played(None)
    return Played(player.allocator.peak_reserved * UNIT)


class _Player:
    """An allocator, and the blocks that it gave by the addresses that they had in the recording."""

    def __init__(self, conf: AllocatorConf, capacity: int | None) -> None:
        self.allocator = Allocator(conf, capacity)
        self.allocator.next_address = _INVENTED
        self._blocks: dict[int, Block] = {}
        self._given = 0
        """Bytes of segments that the driver gave for a request that is still to come."""

    @property
    def reserved(self) -> int:
        """Bytes that the driver has given."""
        return self.allocator.reserved * UNIT + self._given

    def follow(self, event: Event) -> None:
        """One event of a recording, with the addresses that it tells."""
        if event.action in GIVEN:
            self._given += event.size
            if not self.allocator.conf.expandable_segments:
                self.allocator.next_address = self._place(event.address)
        elif event.action == "alloc":
            self.malloc(event)
            self._given = 0
            self.allocator.next_address = max(self.allocator.next_address, _INVENTED)
        elif event.action in FREED:
            self.free(event)
        elif event.action in RETURNED:
            self._give_back(event)

    def lay_out(self, segments: tuple[Segment, ...]) -> None:
        """Put segments and blocks where they lay."""
        allocator = self.allocator
        for segment in segments:
            at, size = self._place(segment.address), segment.size // UNIT
            blocks = [
                (at + (block.address - segment.address) // UNIT, block.size // UNIT)
                for block in segment.blocks
            ]
            pool = allocator.place(at, size, segment.stream, segment.small, blocks)
            for block, (start, units) in zip(segment.blocks, blocks, strict=True):
                self._blocks[block.address] = Block(pool, start, units, block.requested)

    def ask_for(self, segments: tuple[Segment, ...]) -> None:
        """Ask for what was in use."""
        for segment in segments:
            for recorded in segment.blocks:
                block = self.allocator.malloc(recorded.requested, segment.stream)
                self._blocks[recorded.address] = block

    def _place(self, address: int) -> int:
        """Where the model has a segment that lay at ``address``: in the same order, and never
        touching another.

        Its blocks would be merged across the border.
        """
        scale = 1 if self.allocator.conf.expandable_segments else 2
        return scale * (address // UNIT)

    def malloc(self, event: Event) -> None:
        """Ask for a block."""
        self._blocks[event.address] = self.allocator.malloc(event.size, event.stream)

    def free(self, event: Event) -> None:
        """Give a block back, where it is one of ours."""
        block = self._blocks.pop(event.address, None)
        if block is not None:
            self.allocator.free(block)

    def _give_back(self, event: Event) -> None:
        """Give one segment back to the driver, or all free pages."""
        if event.action == "segment_unmap":
            self.allocator.empty_cache()
        else:
            self.allocator.give_back(self._place(event.address), event.size // UNIT)
