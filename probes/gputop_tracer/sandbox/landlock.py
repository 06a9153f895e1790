"""The kernel's lock on writes (Landlock, Linux 5.13), for the script and what it starts."""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from typing import Any

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ASK_VERSION = 1
_PATH_BENEATH = 1
_NO_NEW_PRIVILEGES = 38
_CONNECT_TCP = 1 << 1
"""Known since version 4."""
_ABSTRACT_SOCKETS, _SIGNALS = 1 << 0, 1 << 1
"""Known since version 6: neither reaches beyond what the script started."""
_OF_A_FILE = 1 << 1 | 1 << 14 | 1 << 15
"""Writing, truncating and device controls; the others are rights on a folder."""
TRUNCATES, SIGNALS = 3, 6
"""The versions that know of them."""


def keep_writes_in(*places: str, connects: bool = False) -> int:
    """Let this thread, and what it starts, write beneath ``places`` only, and signal only each
    other.

    Args:
        connects: whether TCP connections are let through; they are known since version 4.

    Returns:
        Landlock's version; 0 where Linux has none, and nothing is kept.
    """
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        version = libc.syscall(
            _CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint(_ASK_VERSION)
        )
        if version > 0 and _restrict(libc, version, places, connects):
            return version
        return 0
    except (OSError, AttributeError):
        return 0


def _handled_bytes(version: int) -> int:
    """So many bytes a kernel of this version reads: files, from 4 on connections, then signals."""
    if version >= SIGNALS:
        return 24
    return 16 if version >= 4 else 8


def _restrict(libc: Any, version: int, places: Any, connects: bool) -> bool:
    writes = _writes(version)
    handled = struct.pack(
        "=QQQ", writes, 0 if connects else _CONNECT_TCP, _ABSTRACT_SOCKETS | _SIGNALS
    )
    handled = handled[: _handled_bytes(version)]
    rules = libc.syscall(_CREATE_RULESET, handled, ctypes.c_size_t(len(handled)), ctypes.c_uint(0))
    if rules < 0:
        return False
    try:
        for path in places:
            _allow(libc, rules, path, writes)
        libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        return libc.syscall(_RESTRICT_SELF, rules, ctypes.c_uint(0)) == 0
    finally:
        os.close(rules)


def _allow(libc: Any, rules: int, place: str, writes: int) -> None:
    try:
        where = os.open(place, os.O_PATH | os.O_CLOEXEC)
    except OSError:  # not every machine has it
        return
    if stat.S_ISDIR(os.fstat(where).st_mode):
        rights = writes
    else:
        rights = writes & _OF_A_FILE
    libc.syscall(
        _ADD_RULE, rules, _PATH_BENEATH, struct.pack("=Qi", rights, where), ctypes.c_uint(0)
    )
    os.close(where)


def _writes(version: int) -> int:
    """Bits of ``linux/landlock.h``: write, remove, make; later rename, truncate, ioctl."""
    since = {13: 2, 14: TRUNCATES, 15: 5}
    bits = [1, *range(4, 13), *(bit for bit, first in since.items() if version >= first)]
    return sum(1 << bit for bit in bits)
