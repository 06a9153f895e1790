"""The course of one GPU's memory: the state before the first event, and what is in use and reserved
after each.

A history is a ring, so that it often begins in the middle of a run. The state at its beginning
follows from that at its end, by undoing event after event.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from gputop_analysis.snapshots.load import BlockInUse, DeviceSnapshot, Event, Segment
from gputop_analysis.vram.blocks import UNIT

GIVEN = ("segment_alloc", "segment_map")
RETURNED = ("segment_free", "segment_unmap")
FREED = ("free_requested", "free")
"""The block was given up; one in use by other streams is free at ``free_completed``."""
_DEFAULT_POOL = (0, 0)


@dataclass(frozen=True, slots=True)
class GpuHistory:
    """One GPU's events between two states."""

    device: DeviceSnapshot
    first_segments: tuple[Segment, ...]
    """Before the first event, with the blocks in use, by address."""
    allocated: tuple[int, ...]
    """Bytes in use as they were asked for, after each event, the state before at index 0."""
    reserved: tuple[int, ...]
    """Bytes that the driver had given, in the same way."""

    @property
    def events(self) -> tuple[Event, ...]:
        """In order."""
        return self.device.events

    @property
    def peak(self) -> int:
        """Index into ``allocated`` of its first highest value."""
        return self.allocated.index(max(self.allocated))

    def blocks_at(self, index: int) -> list[BlockInUse]:
        """The blocks in use after ``index`` events."""
        live = {block.address: block for segment in self.first_segments for block in segment.blocks}
        for event in self.events[:index]:
            if event.action == "alloc":
                size = max(UNIT, -(-event.size // UNIT) * UNIT)
                live[event.address] = BlockInUse(event.address, size, event.size, event.frames)
            elif event.action in FREED:
                live.pop(event.address, None)
        return [live[address] for address in sorted(live)]

    def segments_at(self, index: int) -> list[tuple[int, int]]:
        """(address, size) of the driver's memory after ``index`` events; neighbours merged."""
        spans = _Spans([(segment.address, segment.size) for segment in self.first_segments])
        for event in self.events[:index]:
            if event.action in GIVEN:
                spans.add(event.address, event.size)
            elif event.action in RETURNED:
                spans.remove(event.address, event.size)
        return spans.all()


def history(device: DeviceSnapshot) -> GpuHistory:
    """The course of one GPU's memory."""
    first = _before(device)
    allocated = sum(block.requested for segment in first for block in segment.blocks)
    reserved = sum(segment.size for segment in first)
    live = {block.address: block.requested for segment in first for block in segment.blocks}
    course, reserved_course = [allocated], [reserved]
    for event in device.events:
        if event.action == "alloc":
            live[event.address] = event.size
            allocated += event.size
        elif event.action in FREED:
            allocated -= live.pop(event.address, 0)
        elif event.action in GIVEN:
            reserved += event.size
        elif event.action in RETURNED:
            reserved -= event.size
        course.append(allocated)
        reserved_course.append(reserved)
    return GpuHistory(device, first, tuple(course), tuple(reserved_course))


def _before(device: DeviceSnapshot) -> tuple[Segment, ...]:
    """The segments before the first event: those of the end, with every event undone."""
    blocks = {block.address: block for segment in device.segments for block in segment.blocks}
    spans = _Spans([(segment.address, segment.size) for segment in device.segments])
    small: dict[int, bool] = {}
    streams: dict[int, int] = {}
    for event in reversed(device.events):
        if event.action == "alloc":
            blocks.pop(event.address, None)
        elif event.action in FREED:
            blocks[event.address] = BlockInUse(event.address, 0, event.size, event.frames)
        elif event.action in GIVEN:
            spans.remove(event.address, event.size)
        elif event.action in RETURNED:
            spans.add(event.address, event.size)
            small[event.address] = event.size <= 2 << 20
            streams[event.address] = event.stream
    return tuple(_segments(device, spans.all(), blocks, small, streams))


def _segments(
    device: DeviceSnapshot,
    spans: list[tuple[int, int]],
    blocks: dict[int, BlockInUse],
    small: dict[int, bool],
    streams: dict[int, int],
) -> list[Segment]:
    """Spans of memory and their blocks, described as at the end if they last till then."""
    at_end = {segment.address: segment for segment in device.segments}
    order = sorted(blocks)
    segments = []
    for address, size in spans:
        inside = order[bisect_left(order, address) : bisect_left(order, address + size)]
        segment_at_end = at_end.get(address)
        if segment_at_end:
            is_small = segment_at_end.small
        else:
            is_small = small.get(address, size <= 2 << 20)
        blocks_inside = _sized([blocks[at] for at in inside], address + size, is_small)
        segments.append(
            Segment(
                address=address,
                size=size,
                stream=segment_at_end.stream if segment_at_end else streams.get(address, 0),
                small=is_small,
                expandable=segment_at_end.expandable if segment_at_end else False,
                pool=segment_at_end.pool if segment_at_end else _DEFAULT_POOL,
                blocks=tuple(blocks_inside),
            )
        )
    return segments


def _sized(blocks: list[BlockInUse], end: int, small: bool) -> list[BlockInUse]:
    """Blocks with their whole size, which an event does not tell.

    A large block keeps what is left over up to 1 MiB, and no free large block is that small: a gap
    of at most 1 MiB is part of the block before it.
    """
    sized = []
    for index, block in enumerate(blocks):
        after = blocks[index + 1].address if index + 1 < len(blocks) else end
        size = block.size or max(UNIT, -(-block.requested // UNIT) * UNIT)
        gap = after - block.address - size
        if not block.size and not small and gap <= 1 << 20:
            size += gap
        if size > after - block.address:
            size = after - block.address
        sized.append(block._replace(size=size))
    return sized


class _Spans:
    """Ranges of addresses that do not overlap. Segments stay apart; a range's pages are merged."""

    def __init__(self, spans: list[tuple[int, int]]) -> None:
        self._sizes = dict(spans)

    def add(self, address: int, size: int) -> None:
        """A range that is new."""
        self._sizes[address] = size

    def remove(self, address: int, size: int) -> None:
        """A range: one whole, or parts of one or several."""
        if self._sizes.get(address) == size:
            del self._sizes[address]
            return
        end = address + size
        for start, length in list(self._sizes.items()):
            if start + length <= address or end <= start:
                continue
            del self._sizes[start]
            if start < address:
                self._sizes[start] = address - start
            if end < start + length:
                self._sizes[end] = start + length - end

    def all(self) -> list[tuple[int, int]]:
        """(address, size), by address."""
        return sorted(self._sizes.items())
