"""Loads the events that matter into columns: about 30 bytes an event, whatever the file's size."""

from __future__ import annotations

import os
from array import array
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt

from gputop_analysis.traces import names as known
from gputop_analysis.traces.scan import EventScanner, TraceError

_LATEST_NS = 2**62
_GROUP_FACTS = (
    "Process Group Description",
    "Global rank start",
    "Global rank stride",
    "Group size",
)

Ids = npt.NDArray[np.int32]
Times = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Spans:
    """Events with a beginning and an end; ns on the trace's own clock."""

    starts: Times
    ends: Times
    names: Ids
    """Index into ``Trace.names``."""
    tracks: Ids
    """Index into ``Trace.tracks``: a thread, or a stream of a device."""
    links: Times
    """The id that a kernel and its launch share (``correlation``); -1: none."""
    sizes: Times
    """Bytes of a collective or a copy; -1: not given."""
    groups: Ids
    """Of a collective: index into ``Trace.groups``; 0: not given."""

    def at(self, rows: npt.NDArray[Any]) -> Spans:
        """The rows of a mask or an index."""
        return Spans(
            starts=self.starts[rows],
            ends=self.ends[rows],
            names=self.names[rows],
            tracks=self.tracks[rows],
            links=self.links[rows],
            sizes=self.sizes[rows],
            groups=self.groups[rows],
        )


@dataclass(slots=True)
class Trace:
    """Content of one file."""

    names: list[str]
    groups: list[str]
    """Process groups, by what is alike on all their ranks; the first is none."""
    tracks: list[tuple[Any, Any]]
    """``(pid, tid)`` of a thread, ``(device, stream)`` of device work."""
    kernels: Spans
    copies: Spans
    launches: Spans
    ops: Spans
    marks: Spans
    thread_names: dict[tuple[Any, Any], str]
    device_names: dict[int, str]
    header: dict[str, Any]
    events: int
    torn: str | None

    def rows_named(self, spans: Spans, test: Any) -> npt.NDArray[np.bool_]:
        """Rows of ``spans`` whose name passes ``test``, as a mask; each name is asked once."""
        passes = np.fromiter((test(name) for name in self.names), bool, len(self.names))
        if len(self.names):
            return passes[spans.names]
        return np.zeros(0, bool)


def load(path: str | os.PathLike[str]) -> Trace:
    """Read a trace of torch.profiler, ``.json`` or ``.json.gz``.

    Raises:
        TraceError: the file cannot be read, is no chrome trace, or has no event that we know.
    """
    scanner = EventScanner(path)
    builder = _Builder()
    for event in scanner:
        builder.add(event)
    if builder.events == 0:
        why = f" ({scanner.torn})" if scanner.torn else ""
        if scanner.has_events:
            raise TraceError(f"{scanner.path} has no event: traceEvents is empty{why}")
        raise TraceError(f"{scanner.path} is no chrome trace: it has no traceEvents{why}")
    if not any(len(column) for column in builder.columns):
        raise TraceError(
            f"{scanner.path} has no event of torch.profiler: no operator, kernel or annotation"
        )
    return builder.finish(scanner)


def nanoseconds(microseconds: Any) -> int:
    """Exact ns of a time in us: an integer, or a float as its text."""
    if isinstance(microseconds, int):
        return microseconds * 1000
    whole_us, _, part = microseconds.partition(".")
    if len(part) == 3:  # as Kineto writes it
        try:
            return int(whole_us + part)
        except ValueError:
            pass
    return int((Decimal(microseconds) * 1000).to_integral_value())


class _Column:
    """The growing columns of one kind of event."""

    def __init__(self) -> None:
        self.starts, self.ends, self.links, self.sizes = (array("q") for _ in range(4))
        self.names, self.tracks, self.groups = array("i"), array("i"), array("i")

    def __len__(self) -> int:
        return len(self.starts)

    def spans(self) -> Spans:
        long, short = np.int64, np.int32
        return Spans(
            np.frombuffer(self.starts, long),
            np.frombuffer(self.ends, long),
            names=np.frombuffer(self.names, short),
            tracks=np.frombuffer(self.tracks, short),
            links=np.frombuffer(self.links, long) if self.links else np.full(len(self), -1, long),
            sizes=np.frombuffer(self.sizes, long) if self.sizes else np.full(len(self), -1, long),
            groups=np.frombuffer(self.groups, short) if self.groups else np.zeros(len(self), short),
        )


@dataclass
class _Builder:
    events: int = 0
    columns: list[_Column] = field(default_factory=lambda: [_Column() for _ in range(5)])
    names: dict[str, int] = field(default_factory=dict)
    tracks: dict[tuple[Any, Any], int] = field(default_factory=dict)
    thread_names: dict[tuple[Any, Any], str] = field(default_factory=dict)
    collectives: dict[Any, tuple[str, int, str]] = field(default_factory=dict)
    """(name, bytes, group) by external id, as the host operator record_param_comms tells."""
    groups: dict[str, int] = field(default_factory=lambda: {"": 0})

    def add(self, event: Any) -> None:
        """Take in one event; a foreign or malformed one counts and is passed over."""
        if not isinstance(event, dict):
            return
        self.events += 1
        try:
            phase = event.get("ph")
            if phase == "X":
                category = event.get("cat", "")
                code = known.KINDS.get(category)
                if code is None:
                    code = known.KINDS.get(category.lower())
                if code is not None:
                    self._span(code, event)
            elif phase == "M" and event.get("name") == "thread_name":
                self.thread_names[event["pid"], event["tid"]] = str(event["args"]["name"])
        except (KeyError, ValueError, ArithmeticError, TypeError, AttributeError):
            return

    def _span(self, code: int, event: dict[str, Any]) -> None:
        start = nanoseconds(event["ts"])
        end = start + max(0, nanoseconds(event.get("dur", 0)))
        if not -_LATEST_NS < start <= end < _LATEST_NS:
            raise ValueError  # before any column has grown
        name: str = event["name"]
        args: dict[str, Any] = event.get("args") or {}
        track, size, group = (event.get("pid"), event.get("tid")), -1, ""
        if code <= known.COPY:
            track = (args.get("device", track[0]), args.get("stream", track[1]))
            name, size, group = self._device_work(code, name, args)
        elif name == "record_param_comms":
            self._remember_collective(args)
        name_id = self.names.setdefault(name, len(self.names))
        track_id = self.tracks.setdefault(track, len(self.tracks))
        column = self.columns[code]
        if code <= known.LAUNCH:
            column.links.append(_integer(args.get("correlation")))
            column.sizes.append(size)
        if code == known.KERNEL:
            column.groups.append(self.groups.setdefault(group, len(self.groups)))
        column.starts.append(start)
        column.ends.append(end)
        column.names.append(name_id)
        column.tracks.append(track_id)

    def _device_work(self, code: int, name: str, args: dict[str, Any]) -> tuple[str, int, str]:
        if code == known.COPY:
            return name, _integer(args.get("bytes")), ""
        if not known.is_comm_kernel(name):
            return name, -1, ""
        collective, size, group = self.collectives.get(args.get("External id"), ("", -1, ""))
        group = _group(args) or group
        collective = str(args.get("Collective name") or collective)
        size = max(size, known.message_bytes(args))
        generic = known.collective(name) in (name.split("(")[0], "send_recv")
        if collective and generic:
            name = f"{name.split('(')[0]} {collective}"
        return name, size, group

    def _remember_collective(self, args: dict[str, Any]) -> None:
        size, name = known.message_bytes(args), str(args.get("Collective name") or "")
        if size >= 0 or name:
            self.collectives[args.get("External id")] = (name, size, _group(args))

    def finish(self, scanner: EventScanner) -> Trace:
        """The columns as arrays."""
        kernels, copies, launches, ops, marks = (column.spans() for column in self.columns)
        properties = scanner.header.get("deviceProperties")
        devices = []
        if isinstance(properties, list):
            devices = properties
        return Trace(
            names=list(self.names),
            groups=list(self.groups),
            tracks=list(self.tracks),
            kernels=kernels,
            copies=copies,
            launches=launches,
            ops=ops,
            marks=marks,
            thread_names=self.thread_names,
            device_names={
                d["id"]: str(d.get("name", ""))
                for d in devices
                if isinstance(d, dict) and "id" in d
            },
            header=scanner.header,
            events=self.events,
            torn=scanner.torn,
        )


def _group(args: dict[str, Any]) -> str:
    """The process group of a collective; empty where the trace does not tell."""
    ranks = args.get("Process Group Ranks")
    if not ranks or ranks == "[]":
        return ""
    parts = (args.get(name, "") for name in _GROUP_FACTS)
    return f"{ranks} {' '.join(map(str, parts))}"[:500]


def _integer(value: Any) -> int:
    if isinstance(value, int) and -1 <= value < 2**62:
        return value
    return -1
