"""A script's own view of the machine (namespaces): network, processes, shared memory, devices, and
files read-only.

Many containers and some distributions permit only a part of it, or nothing: the largest part that
works is taken.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import re
import signal
import socket
import struct
import sys
from typing import Any, Callable, List, NamedTuple, NoReturn

_FILES, _IPC, _USER, _PROCESSES, _NETWORK = 0x20000, 0x08000000, 0x10000000, 0x20000000, 0x40000000
_READ_ONLY, _NO_SUID, _NO_DEV, _NO_EXEC = 1, 2, 4, 8
_REMOUNT, _BIND, _RECURSIVE, _PRIVATE = 32, 4096, 16384, 1 << 18
_KEPT_FLAGS = _NO_SUID | _NO_DEV | _NO_EXEC
_MOUNT_SETATTR, _ALL_BELOW, _HERE = 442, 0x8000, -100
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_LINKS = {"fd": "", "stdin": "/0", "stdout": "/1", "stderr": "/2"}
_DEATH_SIGNAL = 1
_DROP_CAPABILITY, _NO_NEW_PRIVILEGES = 24, 38
_CAPABILITIES_3 = 0x20080522
_READING = 1 << 1 | 1 << 2
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH: a script started by root may read what root may."""
_UP = 1
_GET_FLAGS, _SET_FLAGS = 0x8913, 0x8914


class Space(NamedTuple):
    """What a process has for itself."""

    network: bool = False
    files: bool = False
    """All files but its folder's are read-only, and it has own devices and ``/dev/shm``."""
    processes: bool = False
    memory: bool = False


_CHOICES = (
    (_USER | _NETWORK | _IPC | _PROCESSES, True),
    (_NETWORK | _IPC | _PROCESSES, True),
    (_USER | _NETWORK | _IPC, True),
    (_USER | _NETWORK | _IPC, False),
    (_USER | _NETWORK, False),
)
"""Flags of ``unshare``, and whether mounts are tried; kernels differ in what they permit."""


def enter(folder: str, beside: Callable[[], Any]) -> Space:
    """Go on in a child process with as much of its own as the kernel permits; to be called before
    threads are started.

    The calling process stays outside, runs ``beside`` and ends as the child does.

    Args:
        folder: the one that stays writable.
    """
    flags, mounts = next((choice for choice in _CHOICES if _works(folder, *choice)), (0, False))
    _continue_in_child(beside)
    if flags:
        _unshare(flags)
    if flags & _NETWORK:
        _raise_loopback()
    if flags & _PROCESSES:  # they begin with the next child
        _continue_in_child(lambda: None)
        _continue_in_child(lambda: None, first=True)
    if mounts:
        _own_files(folder, bool(flags & _PROCESSES))
    return Space(bool(flags & _NETWORK), mounts, bool(flags & _PROCESSES), bool(flags & _IPC))


def end_with_parent() -> None:
    """The kernel ends this process when its parent is gone."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)


def drop_rights() -> None:
    """Give up what root may do beyond reading, for this process and all that it starts."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        for number in range(64):
            if not 1 << number & _READING:
                libc.prctl(_DROP_CAPABILITY, number, 0, 0, 0)
        held_rights = (ctypes.c_uint32 * 6)()
        header = struct.pack("=Ii", _CAPABILITIES_3, 0)
        libc.capget(header, held_rights)
        rights = [held_rights[0] & _READING, held_rights[1] & _READING, 0]
        libc.capset(header, struct.pack("=6I", *rights, 0, 0, 0))


def _works(folder: str, flags: int, mounts: bool) -> bool:
    """Whether a process that is thrown away can do so."""
    with _flushed():
        child = os.fork()
    if not child:
        _end_as(lambda: _try(folder, flags, mounts))
    return os.waitpid(child, 0)[1] == 0


def _try(folder: str, flags: int, mounts: bool) -> int:
    _unshare(flags)
    if not mounts:
        return 0
    child = os.fork()
    if not child:
        _end_as(lambda: _own_files(folder, bool(flags & _PROCESSES)))
    return os.waitpid(child, 0)[1]


def _end_as(action: Callable[[], Any]) -> NoReturn:
    """End this process, with 0 only if ``action`` worked."""
    code = 1
    try:
        code = 1 if action() else 0
    finally:
        os._exit(code)


def _unshare(flags: int) -> None:
    user, group = os.getuid(), os.getgid()
    _call("unshare", flags)
    if not flags & _USER:
        return
    with contextlib.suppress(OSError):
        _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", "%d %d 1" % (user, user))
    _write("/proc/self/gid_map", "%d %d 1" % (group, group))


def _write(path: str, text: str) -> None:
    with open(path, "w") as lines:
        lines.write(text)


def _raise_loopback() -> None:
    """A new network has a loopback device that is down."""
    with contextlib.suppress(OSError):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            request = struct.pack("16sh22x", b"lo", 0)
            flags = struct.unpack("16sh22x", fcntl.ioctl(any_socket, _GET_FLAGS, request))[1]
            fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sh22x", b"lo", flags | _UP))


def _continue_in_child(beside: Callable[[], Any], first: bool = False) -> None:
    """Return in a child only; this process waits for it and ends as it did.

    Args:
        first: it is the first process of a namespace, which inherits orphans, and which no signal
            of its own ends.
    """
    with _flushed():
        child = os.fork()
    if not child:
        end_with_parent()
        return
    beside()
    status = _wait(child, any_child=first)
    if os.WIFSIGNALED(status):
        code = 128 + os.WTERMSIG(status)
    else:
        code = os.WEXITSTATUS(status)
    if code > 128 and not first:
        number = code - 128
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(code)


def _wait(child: int, any_child: bool) -> int:
    while True:
        ended, status = os.waitpid(-1 if any_child else child, 0)
        if ended == child:
            return status


@contextlib.contextmanager
def _flushed() -> Any:
    """What is in Python's buffers is written once, not by each process."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    yield


def _own_files(folder: str, processes: bool) -> None:
    """Mounts of its own, of which no other process sees anything."""
    _call("unshare", _FILES)
    _mount(None, "/", None, _RECURSIVE | _PRIVATE)
    _mount(folder, folder, None, _BIND)
    _make_read_only(folder)
    _own_devices()
    if processes:
        _mount("proc", "/proc", "proc", _READ_ONLY | _NO_SUID | _NO_DEV | _NO_EXEC)


def _make_read_only(folder: str) -> None:
    """All mounts but the one of ``folder``.

    Raises:
        OSError: one of them stays writable.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    lock, unlock = struct.pack("=4Q", _READ_ONLY, 0, 0, 0), struct.pack("=4Q", 0, _READ_ONLY, 0, 0)
    size = ctypes.c_size_t(32)
    if libc.syscall(_MOUNT_SETATTR, _HERE, b"/", _ALL_BELOW, lock, size) == 0:
        if libc.syscall(_MOUNT_SETATTR, _HERE, os.fsencode(folder), 0, unlock, size) != 0:
            raise OSError(ctypes.get_errno(), "mount_setattr")
        return
    for point in _mount_points():  # before Linux 5.12
        if point == os.path.realpath(folder) or not os.path.exists(point):
            continue
        flags = os.statvfs(point).f_flag & _KEPT_FLAGS
        _mount(None, point, None, _REMOUNT | _BIND | _READ_ONLY | flags)


def _mount_points() -> List[str]:
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
        names = [line.split()[4] for line in lines]
    return [re.sub(r"\\(\d{3})", lambda octal: chr(int(octal.group(1), 8)), name) for name in names]


def _own_devices() -> None:
    """A ``/dev`` with a few devices that keep nothing, and shared memory of its own."""
    devices = {
        name: os.open("/dev/" + name, os.O_PATH)
        for name in DEVICES
        if os.path.exists("/dev/" + name)
    }
    _mount("tmpfs", "/dev", "tmpfs", _NO_SUID, "mode=755,size=1m")
    for name, device in devices.items():
        _write("/dev/" + name, "")
        _mount("/proc/self/fd/%d" % device, "/dev/" + name, None, _BIND)
        os.close(device)
    for name, which in _LINKS.items():
        os.symlink("/proc/self/fd" + which, "/dev/" + name)
    for name in ("shm", "pts", "mqueue"):
        os.mkdir("/dev/" + name)
    _mount("tmpfs", "/dev/shm", "tmpfs", _NO_SUID | _NO_DEV, "mode=1777")
    with contextlib.suppress(OSError):
        _mount("devpts", "/dev/pts", "devpts", _NO_SUID | _NO_EXEC, "newinstance,ptmxmode=0666")
        os.symlink("pts/ptmx", "/dev/ptmx")


def _mount(source: Any, target: str, kind: Any, flags: int, options: str = "") -> None:
    words = [None if word is None else os.fsencode(word) for word in (source, target, kind)]
    _call("mount", *words, ctypes.c_ulong(flags), os.fsencode(options) or None)


def _call(name: str, *arguments: Any) -> None:
    """A function of the C library.

    Raises:
        OSError: it failed.
    """
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, "%s: %s" % (name, os.strerror(number)))
