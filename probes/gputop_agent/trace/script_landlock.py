"""The kernel's lock on writes (Landlock, Linux 5.13): for the script and for whatever it starts, C code included."""

from __future__ import annotations

import ctypes
import os
import struct
from typing import Any

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ASK_VERSION = 1
_PATH_BENEATH = 1
_NO_NEW_PRIVILEGES = 38
_CONNECT_TCP = 1 << 1
"""Known since version 4."""


def keep_writes_in(*folders: str) -> bool:
    """Let this thread, and what it starts, write beneath ``folders`` and ``/dev`` only; False where Linux cannot."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        version = libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint(_ASK_VERSION))
        return version > 0 and _restrict(libc, version, (*folders, "/dev"))
    except (OSError, AttributeError):
        return False


def _restrict(libc: Any, version: int, folders: Any) -> bool:
    writes = _writes(version)
    handled = struct.pack("=QQ", writes, _CONNECT_TCP)[: 16 if version >= 4 else 8]
    rules = libc.syscall(_CREATE_RULESET, handled, ctypes.c_size_t(len(handled)), ctypes.c_uint(0))
    if rules < 0:
        return False
    try:
        for folder in folders:
            where = os.open(folder, os.O_PATH | os.O_CLOEXEC)
            beneath = struct.pack("=Qi", writes, where)
            libc.syscall(_ADD_RULE, rules, _PATH_BENEATH, beneath, ctypes.c_uint(0))
            os.close(where)
        libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        return libc.syscall(_RESTRICT_SELF, rules, ctypes.c_uint(0)) == 0
    finally:
        os.close(rules)


def _writes(version: int) -> int:
    """Bits of ``linux/landlock.h``: write, remove and make; rename across folders and truncate in later versions."""
    bits = [1, *range(4, 13), *([13] if version >= 2 else []), *([14] if version >= 3 else [])]
    return sum(1 << bit for bit in bits)
