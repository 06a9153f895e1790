"""Keeps disk blocks ready beyond the end of the log, so that a full disk does not fail the training's ``print``."""

from __future__ import annotations

import errno
import os

from gputop_probes import linux

RESERVE_BYTES = 8 << 20
_LOW_BYTES = 4 << 20
_BLOCK_BYTES = 4096
_KEPT_TAIL_BYTES = 1 << 20
"""Never punched out: the end of the log is what people need."""


class LogReserve:
    """The reserve of one append-only log.

    On a full disk the oldest part of the log is given up, block by block, to hold what comes.
    """

    def __init__(self, descriptor: int):
        self._descriptor = descriptor
        self._reserved_end = 0
        self._punched_end = 0
        self._unsupported = False

    def tend(self) -> None:
        """Top the reserve up when half of it is used."""
        if self._unsupported:
            return
        size = os.fstat(self._descriptor).st_size
        if self._reserved_end - size >= _LOW_BYTES:
            return
        try:
            self._extend(size)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                self._make_room(size)
            else:
                self._unsupported = True

    def release(self) -> None:
        """Give back what lies beyond the end; only when nobody writes to the log any more."""
        if self._reserved_end:
            os.ftruncate(self._descriptor, os.fstat(self._descriptor).st_size)

    def _extend(self, size: int) -> None:
        linux.reserve(self._descriptor, size, RESERVE_BYTES)
        self._reserved_end = size + RESERVE_BYTES

    def _make_room(self, size: int) -> None:
        """Turn the oldest blocks of the log into room at its end."""
        end = (size - _KEPT_TAIL_BYTES) // _BLOCK_BYTES * _BLOCK_BYTES
        end = min(end, self._punched_end + RESERVE_BYTES)
        if end <= self._punched_end:
            return
        try:
            linux.punch_hole(self._descriptor, self._punched_end, end - self._punched_end)
            room = end - self._punched_end
            self._punched_end = end
            start = max(size, self._reserved_end)
            linux.reserve(self._descriptor, start, room)
            self._reserved_end = start + room
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                self._unsupported = True
