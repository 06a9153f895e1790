"""Why a thread does not move, as ``/proc`` tells: state, kernel function, file it reads."""

from __future__ import annotations

import os
from typing import Any

from gputop_probes import procfs

_ON_DESCRIPTOR = {0, 1, 17, 18, 19, 20, 74, 75, 40, 285}
"""System calls of x86-64 whose first argument is a file: read, write, pread, pwrite, readv, writev,
fsync, fdatasync, sendfile, fallocate.
"""
_CALLS = {
    0: "read", 1: "write", 2: "open", 7: "poll", 17: "read", 18: "write", 19: "read", 20: "write",
    23: "select", 34: "pause", 35: "sleep", 42: "connect", 43: "accept", 45: "recv", 47: "recv",
    61: "wait", 72: "lock a file", 73: "lock a file", 74: "sync", 75: "sync", 202: "futex",
    230: "sleep", 232: "poll", 247: "wait", 257: "open", 270: "select", 271: "poll", 281: "poll",
}  # fmt: skip
"""System calls of x86-64 that wait, in short."""


def describe(pid: int, tid: int) -> dict[str, Any]:
    """``{pid, state, wchan, call, path, mount}`` of a thread; empty texts for what is not told."""
    stat = procfs.stat(pid)
    task = f"/proc/{pid}/task/{tid}"
    raw = procfs.read_bytes(f"{task}/stat") or b""
    after = raw.rpartition(b")")[2].split()
    state = ""
    if after:
        state = after[0].decode()
    elif stat:
        state = stat.state
    wchan = (procfs.read_bytes(f"{task}/wchan") or b"").decode(errors="replace").strip()
    number, first = _system_call(task)
    path = _file(pid, number, first)
    return {
        "pid": pid,
        "state": state,
        "wchan": "" if wchan == "0" else wchan,
        "call": _CALLS.get(number, ""),
        "path": path,
        "mount": _mount(pid, path),
    }


def _system_call(task: str) -> tuple[int, int]:
    """Number and first argument of the call that a thread is in; -1: none, or not ours."""
    words = (procfs.read_bytes(f"{task}/syscall") or b"").split()
    if os.uname().machine != "x86_64":
        return -1, 0
    try:
        return int(words[0]), int(words[1], 16)
    except (IndexError, ValueError):
        return -1, 0


def _file(pid: int, number: int, first: int) -> str:
    """The file that a system call is about."""
    if number not in _ON_DESCRIPTOR:
        return ""
    try:
        path = os.readlink(f"/proc/{pid}/fd/{first}")
    except OSError:
        return ""
    if path.startswith("/"):
        return path
    return ""


def _mount(pid: int, path: str) -> str:
    """``/data (nfs4)``: the mount that a file lies on."""
    if not path:
        return ""
    best, filesystem = "", ""
    for line in (
        (procfs.read_bytes(f"/proc/{pid}/mounts") or b"").decode(errors="replace").splitlines()
    ):
        words = line.split(" ")
        point = ""
        if len(words) > 2:
            point = words[1].replace("\\040", " ")
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if point and inside and len(point) >= len(best):
            best, filesystem = point, words[2]
    if best:
        return f"{best} ({filesystem})"
    return ""
