"""Passes the command's output on to gputop's own streams, for runs without a screen."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gputop_probes.handle import RunHandle

_READ_BYTES = 1 << 18
_BLOCKS_A_PUMP = 64
"""A flood of output must not keep the caller from its other work for long."""
_STDOUT, _STDERR = 1, 2


class OutputForwarder:
    """Copies what is appended to ``output.log`` (and ``stderr.log``, where there is one)."""

    def __init__(self, handle: RunHandle, *, stdout_to_stderr: bool = False):
        """Start at the beginning of the logs.

        Args:
            handle: the run.
            stdout_to_stderr: keep our stdout free for a report.
        """
        out = _STDERR if stdout_to_stderr else _STDOUT
        self._followers = [_Follower(handle.host_dir / "output.log", out)]
        errors = handle.host_dir / "stderr.log"
        if errors.exists():
            self._followers.append(_Follower(errors, _STDERR))

    def pump(self) -> int:
        """Pass on what is new. Returns the number of bytes."""
        return sum(follower.pump() for follower in self._followers)

    def drain(self) -> None:
        """Pass on everything that is left; for the end of the run."""
        while self.pump():
            pass
        for follower in self._followers:
            follower.close()


class _Follower:
    """One log and where it goes."""

    def __init__(self, path: Path, target: int):
        self._path = path
        self._target = target
        self._source: int | None = None
        self._offset = 0
        self._broken = False
        """Nobody reads our stream any more; the training goes on."""

    def pump(self) -> int:
        total = 0
        for _ in range(_BLOCKS_A_PUMP):
            data = self._read_safely()
            if not data:
                break
            self._write(data)
            total += len(data)
        return total

    def close(self) -> None:
        if self._source is not None:
            os.close(self._source)
            self._source = None

    def _read_safely(self) -> bytes:
        if self._broken:
            return b""
        try:
            return self._read()
        except OSError:
            return b""

    def _read(self) -> bytes:
        if self._source is None:
            self._source = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        data = os.pread(self._source, _READ_BYTES, self._offset)
        if data and not data.strip(b"\0"):
            data = self._after_hole(data)
        self._offset += len(data)
        return data

    def _after_hole(self, data: bytes) -> bytes:
        """Skip a part of the log that was given up on a full disk; zeros that were written stay."""
        assert self._source is not None
        try:
            start = os.lseek(self._source, self._offset, os.SEEK_DATA)
        except (OSError, AttributeError):
            return data
        if start == self._offset:
            return data
        self._offset = start
        return os.pread(self._source, _READ_BYTES, start)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view and not self._broken:
            try:
                view = view[os.write(self._target, view) :]
            except BlockingIOError:
                _wait_writable(self._target)
            except OSError:
                self._broken = True


def _wait_writable(descriptor: int) -> None:
    import select

    select.select([], [descriptor], [], 1.0)
