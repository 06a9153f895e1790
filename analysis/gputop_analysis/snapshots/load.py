"""A snapshot's file as checked values: its last segments and what led there, by GPU."""

from __future__ import annotations

import os
import zlib
from dataclasses import dataclass
from typing import Any, NamedTuple

from gputop_analysis.snapshots.values import UnpickleError, plain_values
from gputop_analysis.units import GIB
from gputop_analysis.vram.conf import DEFAULT, AllocatorConf, parse
from gputop_probes.record.files import open_regular

READ_AT_MOST = GIB
"""Bytes, unpacked: a few MB of gzip can hold gigabytes."""
_ENTRIES_AT_MOST = 20_000_000
"""Blocks, segments and events together; a damaged file can name one list many times."""
_GZIP_MAGIC = b"\x1f\x8b"
_HIGHEST = 1 << 62
_INTERVALS = len(DEFAULT.roundup_power2_divisions)
_ACTIVE = ("active_allocated", "active_pending_free", "active_awaiting_free")
_CONF_NAMES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
DUMP_HINT = "torch.cuda.memory._dump_snapshot writes one"


class SnapshotError(ValueError):
    """The file is no snapshot that can be read; the message is one line for the user."""


class Event(NamedTuple):
    """One entry of the allocator's history; bytes."""

    action: str
    address: int
    size: int
    """As asked for, not rounded; of a segment its whole size."""
    stream: int
    time_us: int
    frames: Any
    """As the file has them, see ``frames.site``."""


class BlockInUse(NamedTuple):
    """A block in use; bytes."""

    address: int
    size: int
    requested: int
    frames: Any


class Segment(NamedTuple):
    """Memory that the driver gave; bytes."""

    address: int
    size: int
    stream: int
    small: bool
    expandable: bool
    pool: tuple[int, ...]
    """(0, 0), or that of a CUDA graph."""
    blocks: tuple[BlockInUse, ...]
    """Those in use, by address."""


@dataclass(frozen=True, slots=True)
class DeviceSnapshot:
    """One GPU of a snapshot."""

    device: int
    segments: tuple[Segment, ...]
    """At the end."""
    events: tuple[Event, ...]
    """In order; empty where no history was recorded."""


@dataclass(frozen=True, slots=True)
class AllocatorSnapshot:
    """Content of one file."""

    path: str
    devices: tuple[DeviceSnapshot, ...]
    """Those that hold memory or have a history, by number."""
    conf: AllocatorConf
    conf_known: bool
    """Whether the file tells the allocator's settings; those of older versions do not."""
    annotations: tuple[tuple[str, str, int], ...]
    """(START or END, name, time_us) of ``record_function`` and the optimizer."""


def load(path: str | os.PathLike[str]) -> AllocatorSnapshot:
    """Read a snapshot, plain or gzipped.

    Raises:
        SnapshotError: it cannot be read, is too large, damaged or something else.
    """
    try:
        content = plain_values(unpacked(path))
    except UnpickleError as error:
        raise SnapshotError(f"{path} is no allocator snapshot: {error}") from None
    except OSError as error:
        raise SnapshotError(f"cannot read {path}: {error.strerror or error}") from None
    try:
        return _snapshot(str(path), content)
    except (TypeError, KeyError, ValueError, AttributeError, OverflowError) as error:
        if isinstance(error, SnapshotError):
            raise
        raise SnapshotError(f"{path} is no allocator snapshot: {DUMP_HINT}") from None


def unpacked(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a file, plain or gzipped.

    Raises:
        OSError: it cannot be read.
        SnapshotError: it is damaged, or larger than is read.
    """
    with os.fdopen(open_regular(path), "rb") as file:
        data = file.read(READ_AT_MOST + 1)
    if data.startswith(_GZIP_MAGIC):
        data = _inflated(path, data)
    if len(data) > READ_AT_MOST:
        raise SnapshotError(f"{path} is larger than the {READ_AT_MOST >> 30} GiB that are read")
    return data


def _inflated(path: str | os.PathLike[str], data: bytes) -> bytes:
    inflate = zlib.decompressobj(wbits=31)
    try:
        plain = inflate.decompress(data, READ_AT_MOST + 1)
    except zlib.error:
        raise SnapshotError(f"{path} is damaged: its compressed data cannot be read") from None
    if not inflate.eof and len(plain) <= READ_AT_MOST:
        raise SnapshotError(f"{path} is cut off: copy it again")
    return plain


def _snapshot(path: str, content: Any) -> AllocatorSnapshot:
    if isinstance(content, list):  # torch.cuda.memory_snapshot() before 2.0: the segments alone
        content = {"segments": content}
    if not isinstance(content, dict) or not isinstance(content.get("segments"), list):
        raise SnapshotError(f"{path} is no allocator snapshot: it has no segments ({DUMP_HINT})")
    reader = _EntryReader()
    segments: dict[int, list[Segment]] = {}
    for raw in content["segments"]:
        device, segment = reader.segment(raw)
        segments.setdefault(device, []).append(segment)
    traces = content.get("device_traces") or []
    events = {device: reader.events(trace) for device, trace in enumerate(traces) if trace}
    numbers = sorted(segments.keys() | events.keys())
    if not numbers:
        raise SnapshotError(f"{path} holds no memory and no history: nothing was allocated")
    settings = content.get("allocator_settings")
    return AllocatorSnapshot(
        path=path,
        devices=tuple(
            DeviceSnapshot(
                device=number,
                segments=tuple(sorted(segments.get(number, ()))),
                events=events.get(number, ()),
            )
            for number in numbers
        ),
        conf=_conf(settings) if isinstance(settings, dict) else DEFAULT,
        conf_known=isinstance(settings, dict),
        annotations=_annotations(content.get("external_annotations")),
    )


class _EntryReader:
    """Checks entries, and counts them."""

    def __init__(self) -> None:
        self._entries = 0

    def segment(self, raw: dict[str, Any]) -> tuple[int, Segment]:
        """(device, segment) of an entry of ``segments``."""
        self._count(1)
        address, size = _integer(raw["address"]), _integer(raw["total_size"])
        pool = raw.get("segment_pool_id") or (0, 0)
        return _integer(raw.get("device", 0)), Segment(
            address=address,
            size=size,
            stream=_integer(raw.get("stream", 0)),
            small=raw.get("segment_type") == "small",
            expandable=raw.get("is_expandable") is True,
            pool=tuple(_integer(part) for part in pool),
            blocks=tuple(self._blocks(raw["blocks"], address, address + size)),
        )

    def _blocks(self, raw: list[dict[str, Any]], at: int, end: int) -> list[BlockInUse]:
        self._count(len(raw))
        blocks = []
        for block in raw:
            size = _integer(block["size"])
            if at + size > end:
                raise ValueError
            if block["state"] in _ACTIVE:
                requested, frames = _asked_for(block)
                blocks.append(BlockInUse(at, size, requested, frames))
            at += size
        return blocks

    def events(self, raw: list[dict[str, Any]]) -> tuple[Event, ...]:
        """An entry of ``device_traces``."""
        self._count(len(raw))
        return tuple(
            Event(
                action=str(event["action"]),
                address=_integer(event.get("addr", event.get("device_free", 0))),
                size=_integer(event.get("size", 0)),
                stream=_integer(event.get("stream", 0)),
                time_us=_integer(event.get("time_us", 0)),
                frames=event.get("frames"),
            )
            for event in raw
        )

    def _count(self, more: int) -> None:
        self._entries += more
        if self._entries > _ENTRIES_AT_MOST:
            raise SnapshotError("the snapshot names more blocks and events than are read")


def _asked_for(block: dict[str, Any]) -> tuple[int, Any]:
    """Bytes that were asked for and the stack that did; those of torch 1.13 and 2.0 are in a
    ``history``, the newest first.
    """
    past = block.get("history")
    newest = past[0] if isinstance(past, list) and past else {}
    requested = block.get("requested_size", newest.get("real_size", block["size"]))
    return _integer(requested), block.get("frames", newest.get("frames"))


def _integer(value: Any) -> int:
    if type(value) is not int or not 0 <= value < _HIGHEST:
        raise ValueError
    return value


def _conf(settings: dict[str, Any]) -> AllocatorConf:
    """The allocator's settings as it had read them; by its variable where that can be read."""
    try:
        conf = parse(str(next(filter(None, map(settings.get, _CONF_NAMES)), "")))
    except ValueError:
        conf = DEFAULT
    split, threshold = settings.get("max_split_size"), settings.get("garbage_collection_threshold")
    if type(split) is int and 0 < split < _HIGHEST:
        conf = conf._replace(max_split_size=split)
    if isinstance(threshold, float) and 0.0 <= threshold < 1.0:
        conf = conf._replace(garbage_collection_threshold=threshold)
    divisions = settings.get("roundup_power2_divisions")
    if isinstance(divisions, dict) and len(divisions) == _INTERVALS:
        parts = tuple(_power(value) for value in divisions.values())
        conf = conf._replace(roundup_power2_divisions=parts)
    return conf._replace(expandable_segments=settings.get("expandable_segments") is True)


def _power(value: Any) -> int:
    number = _integer(value)
    if number.bit_count() > 1:
        raise ValueError
    return number


def _annotations(raw: Any) -> tuple[tuple[str, str, int], ...]:
    if not isinstance(raw, list):
        return ()
    return tuple(
        (
            str(annotation.get("stage")),
            str(annotation.get("name")),
            _integer(annotation.get("time_us", 0)),
        )
        for annotation in raw
        if isinstance(annotation, dict)
    )
