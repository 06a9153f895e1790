"""The few Linux calls that Python has no name for; each says False where the kernel does not have it."""

from __future__ import annotations

import ctypes
import os
import sys

_PR_SET_CHILD_SUBREAPER = 36
_FALLOC_KEEP_SIZE = 1
_FALLOC_PUNCH_HOLE = 2


def set_subreaper() -> bool:
    """Become the parent of descendants whose own parent dies."""
    if sys.platform != "linux":
        return False
    return _libc().prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


def reserve(descriptor: int, offset: int, length: int) -> None:
    """Allocate disk blocks without changing the file's size.

    Raises:
        OSError: no space, or the file system cannot do it.
    """
    _fallocate(descriptor, _FALLOC_KEEP_SIZE, offset, length)


def punch_hole(descriptor: int, offset: int, length: int) -> None:
    """Give the disk blocks of a part of a file back; it reads as zeros afterwards.

    Raises:
        OSError: the file system cannot do it.
    """
    _fallocate(descriptor, _FALLOC_KEEP_SIZE | _FALLOC_PUNCH_HOLE, offset, length)


def _fallocate(descriptor: int, mode: int, offset: int, length: int) -> None:
    if sys.platform != "linux":
        raise OSError(95, "not supported")
    if _libc().fallocate(descriptor, mode, ctypes.c_long(offset), ctypes.c_long(length)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
