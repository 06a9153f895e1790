"""Follows the log files of a run. Called from a worker thread; reads a bounded amount a call."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple

from gputop.output.ansi import resolve_text
from gputop.output.lines import LineBuffer, OutputWriter
from gputop_probes.record.files import open_regular
from gputop_probes.record.layout import LOG_LENGTHS

FIRST_READ = 1 << 20
"""Bytes of the end of a file that are read at most when it is opened."""
MAX_READ = 4 << 20
"""More than this since the last call: the middle is skipped, and a line says so."""


class OutputView(NamedTuple):
    """The lines as they were at one moment; raw, to be parsed when drawn."""

    lines: tuple[str, ...] = ()
    dropped: int = 0
    """Lines that came before and are no longer kept."""

    @property
    def written(self) -> int:
        """Lines that the command has written; after a line's end the next has not begun yet."""
        begun = bool(self.lines) and not resolve_text(self.lines[-1])
        return self.dropped + len(self.lines) - begun


class _File:
    def __init__(self, path: Path, stream: OutputWriter):
        self.path = path
        self.stream = stream
        self.offset = -1


class Tail:
    """All ``output.log`` and ``stderr.log`` of a run, in one buffer."""

    def __init__(self, run_dir: Path):
        self.run_dir = run_dir
        self.buffer = LineBuffer()
        self._files: dict[Path, _File] = {}

    def poll(self, lengths: Mapping[str, int] | None = None) -> bool:
        """Read what was appended. Returns whether there was anything.

        Args:
            lengths: bytes of each log, by its path within the record, that are read at most: those
                that had been written at the moment that is shown. None: all that there are.
        """
        self._find()
        ends = {path: _end_of(path, lengths, self.run_dir) for path in self._files}
        grown = any(file.offset > ends[path] for path, file in self._files.items())
        if grown:  # a moment before the one that was shown
            self.buffer = LineBuffer()
            self._files = {path: _File(path, OutputWriter(self.buffer)) for path in self._files}
        for path, file in self._files.items():
            data = _read(file, ends[path])
            if data:
                file.stream.feed(data)
                grown = True
        return grown

    def view(self) -> OutputView:
        """A copy for the screen, which draws while this thread reads on."""
        return OutputView(tuple(self.buffer.lines), self.buffer.dropped)

    def _find(self) -> None:
        for name in LOG_LENGTHS:
            for path in sorted(self.run_dir.glob(f"hosts/*/{name}")):
                if path not in self._files:
                    self._files[path] = _File(path, OutputWriter(self.buffer))


def _end_of(path: Path, lengths: Mapping[str, int] | None, run_dir: Path) -> float:
    """Bytes of a log that may be shown."""
    if lengths is None:
        return math.inf
    return lengths.get(str(path.relative_to(run_dir)), math.inf)


def _read(file: _File, end: float) -> bytes:
    try:
        if min(file.path.stat().st_size, end) == file.offset:
            return b""
        with os.fdopen(open_regular(file.path), "rb") as handle:
            size = int(min(os.fstat(handle.fileno()).st_size, end))
            if size < file.offset:  # its newest part was moved to its beginning, for want of room
                file.offset = -1
            before = max(file.offset, 0)
            if file.offset < 0:
                limit = FIRST_READ
            else:
                limit = MAX_READ
            start = max(before, size - limit, _first_data(handle))
            handle.seek(start)
            if start > before:
                start += len(handle.readline(limit))
            data = handle.read(size - start)
    except OSError:
        return b""
    file.offset = start + len(data)
    skipped = ""
    if start > before:
        skipped = f"[{start - before:,} bytes of earlier output left out here]\n"
    return skipped.encode() + data


def _first_data(handle: BinaryIO) -> int:
    """Offset of the beginning of a log whose oldest part was given up."""
    try:
        return os.lseek(handle.fileno(), 0, os.SEEK_DATA)
    except (OSError, AttributeError):
        return 0
