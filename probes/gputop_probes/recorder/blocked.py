"""Why a thread does not move, as ``/proc`` tells: state, kernel function, file it reads."""

from __future__ import annotations

import os
from typing import Any

from gputop_probes import procfs

_CALLS = {
    "x86_64": {
        0: "read", 1: "write", 2: "open", 7: "poll", 17: "read", 18: "write", 19: "read",
        20: "write", 23: "select", 34: "pause", 35: "sleep", 40: "write", 42: "connect",
        43: "accept", 44: "send", 45: "recv", 46: "send", 47: "recv", 61: "wait",
        65: "lock", 70: "recv", 72: "lock a file", 73: "lock a file", 74: "sync", 75: "sync",
        128: "pause", 130: "pause", 202: "futex", 220: "lock", 230: "sleep", 232: "poll",
        247: "wait", 257: "open", 270: "select", 271: "poll", 281: "poll", 285: "write",
        288: "accept", 299: "recv", 441: "poll", 449: "futex",
    },
    "aarch64": {
        22: "poll", 25: "lock a file", 32: "lock a file", 47: "write", 56: "open", 63: "read",
        64: "write", 65: "read", 66: "write", 67: "read", 68: "write", 71: "write",
        72: "select", 73: "poll", 82: "sync", 83: "sync", 95: "wait", 98: "futex", 101: "sleep",
        115: "sleep", 133: "pause", 137: "pause", 188: "recv", 192: "lock", 193: "lock",
        202: "accept", 203: "connect", 206: "send", 207: "recv", 211: "send", 212: "recv",
        242: "accept", 243: "recv", 260: "wait", 441: "poll", 449: "futex",
    },
}  # fmt: skip
"""System calls that wait, in short, by machine and number: pipes, sockets, semaphores, messages."""
_OF_FILES = ("read", "write", "sync")
"""Those whose first argument is a file."""


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
    call, first = _system_call(task)
    path = ""
    if call in _OF_FILES:
        path = _file(pid, first)
    return {
        "pid": pid,
        "state": state,
        "wchan": "" if wchan == "0" else wchan,
        "call": call,
        "path": path,
        "mount": _mount(pid, path),
    }


def _system_call(task: str) -> tuple[str, int]:
    """Short name and first argument of the call that a thread is in; empty: none, or not ours."""
    words = (procfs.read_bytes(f"{task}/syscall") or b"").split()
    try:
        number, first = int(words[0]), int(words[1], 16)
    except (IndexError, ValueError):
        return "", 0
    return _CALLS.get(os.uname().machine, {}).get(number, ""), first


def _file(pid: int, descriptor: int) -> str:
    """The file behind a descriptor; empty: none, or a pipe or socket."""
    try:
        path = os.readlink(f"/proc/{pid}/fd/{descriptor}")
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
