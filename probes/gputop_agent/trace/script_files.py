"""Files of a script: what it reads may lie where the command was given, what it writes stays in its empty folder.

The kernel refuses writes elsewhere where it has Landlock (Linux 5.13), for the script and what it starts. A script is
not to fail for that, so files and folders that it makes elsewhere are made at the same path inside its own folder.
"""

from __future__ import annotations

import builtins
import ctypes
import io
import os
import struct
from typing import Any

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ASK_VERSION = 1
_PATH_BENEATH = 1
_NO_NEW_PRIVILEGES = 38
_CONNECT_TCP = 1 << 1
"""Known since version 4."""
_ANYWHERE = ("/dev/", "/proc/")


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


def redirect(home: str, folder: str) -> None:
    """Relative files that are not there are read from ``home``; what is written elsewhere goes beneath ``folder``."""
    files = _Files(home, folder)
    for place in (builtins, io):
        place.open = files.open  # type: ignore[attr-defined,assignment]
    os.mkdir = files.mkdir


class _Files:
    def __init__(self, home: str, folder: str) -> None:
        self.home, self.folder = home, os.path.realpath(folder)
        self._open, self._mkdir = builtins.open, os.mkdir

    def open(self, file: Any, mode: Any = "r", *arguments: Any, **options: Any) -> Any:
        name = os.fspath(file) if isinstance(file, (str, os.PathLike)) else None
        if isinstance(name, str) and isinstance(mode, str):
            file = self._written(name) if set(mode) & set("wax+") else self._read(name)
        return self._open(file, mode, *arguments, **options)

    def mkdir(self, path: Any, *arguments: Any, **options: Any) -> None:
        name = os.fspath(path)
        if isinstance(name, str) and not options.get("dir_fd") and not self._own(name) and not os.path.exists(name):
            os.makedirs(self._mirror(name), exist_ok=True)
            return
        self._mkdir(path, *arguments, **options)

    def _read(self, name: str) -> str:
        if os.path.isabs(name):
            return self._mirror(name) if not self._own(name) and os.path.exists(self._mirror(name)) else name
        there = os.path.join(self.home, name)
        return there if not os.path.exists(name) and os.path.exists(there) else name

    def _written(self, name: str) -> str:
        if self._own(name):
            return name
        mirror = self._mirror(name)
        os.makedirs(os.path.dirname(mirror), exist_ok=True)
        return mirror

    def _own(self, name: str) -> bool:
        full = os.path.realpath(name)
        return full.startswith(self.folder + os.sep) or full == self.folder or full.startswith(_ANYWHERE)

    def _mirror(self, name: str) -> str:
        return os.path.join(self.folder, "elsewhere", os.path.abspath(name).lstrip(os.sep))
