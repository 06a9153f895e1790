"""One GPU of a snapshot judged: who holds the peak, what idles because of whom, what to set."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from gputop_analysis.snapshots import frames
from gputop_analysis.snapshots.history import GpuHistory, history
from gputop_analysis.snapshots.load import (
    AllocatorSnapshot,
    BlockInUse,
    DeviceSnapshot,
    SnapshotError,
)
from gputop_analysis.snapshots.play import play_as_recorded
from gputop_analysis.snapshots.settings import (
    AS_RECORDED,
    REPLAYED,
    AllocatorSetting,
    other_settings,
)

_POINTS = 200


class Holder(NamedTuple):
    """All blocks that one line holds at the peak."""

    site: str
    category: str
    bytes: int
    """As asked for."""
    blocks: int


class MemoryCulprit(NamedTuple):
    """A line whose blocks keep the rest of their segments from being given back."""

    site: str
    bytes: int
    """Idle in the segments that its blocks are in, shared equally with the other blocks there."""
    segments: int


class Fragmentation(NamedTuple):
    """The reserved peak; bytes. ``used``, ``pinned`` and ``cached`` add up to ``reserved``."""

    reserved: int
    used: int
    """Blocks in use, rounded as the allocator does."""
    pinned: int
    """Idle in segments that a block in use keeps from being given back."""
    cached: int
    """Segments that are wholly idle."""
    culprits: tuple[MemoryCulprit, ...]


@dataclass(frozen=True, slots=True)
class Memory:
    """Result of ``analyse``."""

    path: str
    device: int
    others: tuple[int, ...]
    """Other GPUs in the file."""
    events: int
    peak_allocated: int
    """Bytes in use as they were asked for, at most; of a snapshot without history at its end."""
    peak_reserved: int
    """Bytes that the driver had given, at most."""
    replayed_peak_reserved: int
    first_difference: int | None
    holders: tuple[Holder, ...]
    """At the allocated peak, the largest first; their bytes add up to it."""
    layers: tuple[tuple[str, int], ...]
    """(lines of forward from the outermost inward, bytes) at the peak, the largest first."""
    moment: str
    """What ran at the peak, where the recording names it."""
    course: tuple[tuple[int, int], ...]
    """(allocated, reserved) over the events, at most 200 points, the highest of each part."""
    fragmentation: Fragmentation
    settings: tuple[AllocatorSetting, ...]
    """As recorded first, then replayed where that differs; empty without a history."""
    failed_bytes: int | None
    """What was asked for when memory ran out; None: it did not."""
    conf_known: bool
    at_beginning: int = 0
    """Bytes in use before the first recorded event."""

    @property
    def has_history(self) -> bool:
        """Whether allocations were recorded; else the peaks are those when it was taken."""
        return bool(self.settings)

    @property
    def baseline(self) -> int:
        """The reserved peak that those of other settings are compared with."""
        recorded = [s.peak_reserved for s in self.settings if s.name in (AS_RECORDED, REPLAYED)]
        return recorded[-1] or 0 if recorded else 0

    @property
    def tried(self) -> tuple[AllocatorSetting, ...]:
        """The settings that are not those of the recording."""
        return tuple(s for s in self.settings if s.name not in (AS_RECORDED, REPLAYED))

    @property
    def categories(self) -> dict[str, int]:
        """Bytes at the peak by kind of tensor, the largest first."""
        sums = _sums((holder.category, holder.bytes) for holder in self.holders)
        return dict(sorted(sums.items(), key=lambda item: -item[1]))

    def as_data(self) -> dict[str, Any]:
        """What ``gputop memory --json`` prints."""
        return {
            "peak_allocated_bytes": self.peak_allocated,
            "peak_reserved_bytes": self.peak_reserved,
            "replayed_peak_reserved_bytes": self.replayed_peak_reserved,
            "replay_first_difference_event": self.first_difference,
            "holders": [holder._asdict() for holder in self.holders],
            "settings": [
                {"name": setting.name, "peak_reserved_bytes": setting.peak_reserved}
                for setting in self.settings
            ],
        }


def analyse(
    snapshot: AllocatorSnapshot, device: int | None = None, capacity: int | None = None
) -> Memory:
    """Judge one GPU of a snapshot.

    Args:
        snapshot: the file.
        device: which GPU; None: the one that ran out of memory, else the one with the most
            reserved.
        capacity: its bytes, for what other settings would do; None: not known.

    Raises:
        SnapshotError: the file has no such GPU.
    """
    chosen = _chosen(snapshot, device)
    course = history(chosen)
    played = play_as_recorded(course, snapshot.conf)
    peak = course.peak
    blocks = course.blocks_at(peak)
    failures = [event.size for event in chosen.events if event.action == "oom"]
    return Memory(
        path=snapshot.path,
        device=chosen.device,
        others=tuple(other.device for other in snapshot.devices if other is not chosen),
        events=len(chosen.events),
        peak_allocated=course.allocated[peak],
        peak_reserved=max(course.reserved),
        replayed_peak_reserved=played.peak_reserved or 0,
        first_difference=played.first_difference,
        holders=_holders(blocks),
        layers=_layers(blocks),
        moment=_moment(snapshot, chosen, peak),
        course=_thinned(course),
        fragmentation=_fragmentation(course),
        settings=other_settings(course, snapshot.conf, capacity),
        failed_bytes=failures[-1] if failures else None,
        conf_known=snapshot.conf_known,
        at_beginning=course.allocated[0],
    )


def _chosen(snapshot: AllocatorSnapshot, device: int | None) -> DeviceSnapshot:
    if device is None:
        return max(snapshot.devices, key=_weight)
    for candidate in snapshot.devices:
        if candidate.device == device:
            return candidate
    there = ", ".join(str(candidate.device) for candidate in snapshot.devices)
    raise SnapshotError(f"{snapshot.path} has no GPU {device}, only {there}")


def _weight(device: DeviceSnapshot) -> tuple[bool, int]:
    ran_out = any(event.action == "oom" for event in device.events)
    return ran_out, sum(part.size for part in device.segments)


def _holders(blocks: Iterable[BlockInUse]) -> tuple[Holder, ...]:
    sizes: dict[tuple[str, str], list[int]] = {}
    for block in blocks:
        key = frames.site(block.frames), frames.category(block.frames)
        sizes.setdefault(key, []).append(block.requested)
    holders = [Holder(*key, sum(parts), len(parts)) for key, parts in sizes.items()]
    return tuple(sorted(holders, key=lambda holder: (-holder.bytes, holder.site)))


def _layers(blocks: Iterable[BlockInUse]) -> tuple[tuple[str, int], ...]:
    sums = _sums((frames.layer(block.frames), block.requested) for block in blocks)
    sums.pop("", None)
    return tuple(sorted(sums.items(), key=lambda item: (-item[1], item[0])))


def _sums(pairs: Iterable[tuple[str, int]]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for name, size in pairs:
        sums[name] = sums.get(name, 0) + size
    return sums


def _moment(snapshot: AllocatorSnapshot, device: DeviceSnapshot, peak: int) -> str:
    """The innermost annotation open at the peak, else what the request's stack tells."""
    if not peak:
        return ""
    event = device.events[peak - 1]
    opened: list[str] = []
    for stage, name, time_us in snapshot.annotations:
        if time_us > event.time_us:
            break
        if stage == "START":
            opened.append(name)
        elif name in opened:
            opened.remove(name)
    return opened[-1] if opened else frames.site(event.frames)


def _thinned(course: GpuHistory) -> tuple[tuple[int, int], ...]:
    """The highest values of at most 200 equal parts of the events."""
    count = len(course.allocated)
    parts = min(count, _POINTS)
    edges = [part * count // parts for part in range(parts + 1)]
    return tuple(
        (max(course.allocated[low:high]), max(course.reserved[low:high]))
        for low, high in pairwise(edges)
    )


def _fragmentation(course: GpuHistory) -> Fragmentation:
    """What lies idle when the most is reserved; of moments alike the one with the most in use."""
    highest = max(course.reserved)
    index = min(
        (at for at, reserved in enumerate(course.reserved) if reserved == highest),
        key=lambda at: -course.allocated[at],
    )
    segments = course.segments_at(index)
    blocks = course.blocks_at(index)
    starts = [block.address for block in blocks]
    used = pinned = cached = 0
    shares: dict[str, list[float]] = {}
    for address, size in segments:
        inside = blocks[bisect_left(starts, address) : bisect_right(starts, address + size - 1)]
        taken = min(size, sum(block.size for block in inside))
        used += taken
        if not inside:
            cached += size
            continue
        pinned += size - taken
        _share(shares, inside, size - taken, frames.site)
    culprits = [
        MemoryCulprit(site, round(sum(parts)), len(parts)) for site, parts in shares.items()
    ]
    culprits.sort(key=lambda culprit: (-culprit.bytes, culprit.site))
    return Fragmentation(sum(size for _, size in segments), used, pinned, cached, tuple(culprits))


def _share(
    shares: dict[str, list[float]], blocks: list[BlockInUse], idle: int, site: Callable[[Any], str]
) -> None:
    """Charge the idle bytes of one segment to the lines whose blocks are in it."""
    if not idle:
        return
    sums: dict[str, float] = {}
    for block in blocks:
        name = site(block.frames)
        sums[name] = sums.get(name, 0.0) + idle / len(blocks)
    for name, part in sums.items():
        shares.setdefault(name, []).append(part)
