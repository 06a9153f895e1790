"""Time in which the whole run was stopped (Ctrl-Z): taken out of the records that it fell into."""

from __future__ import annotations

import struct
from collections import deque

from gputop_agent import wire

_REMEMBERED = 16
_STEP_NAMES = [name for name, _ in wire.STEP_FIELDS]
_T_END, _WALL, _WALL_MAX, _COUNT = map(
    _STEP_NAMES.index, ("t_end_ns", "wall_ns", "wall_max_ns", "n_steps")
)
_PHASES = [_STEP_NAMES.index(f"{name}_ns") for name in wire.PHASES]
_COMM_NAMES = [name for name, _ in wire.COMM_FIELDS]
_COMM_TIMES = [
    index for index, name in enumerate(_COMM_NAMES) if name.endswith("_ns") and name != "t_end_ns"
]


class Pauses:
    """The spans in which the run was stopped, in nanoseconds since the epoch."""

    def __init__(self) -> None:
        self._spans: deque[tuple[int, int | None]] = deque(maxlen=_REMEMBERED)

    def begin(self, t_ns: int) -> None:
        """Every process of the run is stopped now."""
        self._spans.append((t_ns, None))

    def end(self, t_ns: int) -> int:
        """They go on. Returns how long they were stopped, in nanoseconds."""
        if not self._spans or self._spans[-1][1] is not None:
            return 0
        began, _ = self._spans.pop()
        self._spans.append((began, t_ns))
        return t_ns - began

    def cut_steps(self, records: bytes) -> bytes:
        """STEP records without the time in which their ranks were stopped."""
        return self._cut(records, wire.STEP, self._cut_step)

    def cut_comm(self, records: bytes) -> bytes:
        """The same of COMM records."""
        return self._cut(records, wire.COMM, self._cut_comm)

    def _cut(self, records: bytes, layout: struct.Struct, cut) -> bytes:
        if not self._spans:
            return records
        return b"".join(layout.pack(*cut(list(fields))) for fields in layout.iter_unpack(records))

    def _cut_step(self, fields: list) -> list:
        stopped = self._within(fields[_T_END] - fields[_WALL], fields[_T_END])
        if stopped:
            fields[_WALL] -= stopped
            longest = max(fields[_WALL_MAX] - stopped, fields[_WALL] // max(1, fields[_COUNT]))
            fields[_WALL_MAX] = min(fields[_WALL_MAX], longest)
            _take_from_largest(fields, stopped)
        return fields

    def _cut_comm(self, fields: list) -> list:
        began = fields[0] - max(fields[index] for index in _COMM_TIMES)
        stopped = self._within(began, fields[0])
        for index in _COMM_TIMES if stopped else []:
            if fields[index] >= stopped:
                fields[index] -= stopped
        return fields

    def _within(self, begin_ns: int, end_ns: int) -> int:
        """Stopped time inside a span."""
        stopped_ns = 0
        for stop_ns, resume_ns in self._spans:
            until_ns = end_ns if resume_ns is None else min(end_ns, resume_ns)
            stopped_ns += max(0, until_ns - max(begin_ns, stop_ns))
        return stopped_ns


def _take_from_largest(fields: list, stopped: int) -> None:
    """The phase that was going on is the one that has become long."""
    for index in sorted(_PHASES, key=lambda index: -fields[index]):
        taken = min(stopped, fields[index])
        fields[index] -= taken
        stopped -= taken
