"""Reasons why a thread does not move, as ``/proc`` tells: its state, the kernel function, the file
it reads.
"""

from __future__ import annotations

import os
from typing import Any

from gputop_probes import procfs

_ON_DESCRIPTOR = {0, 1, 17, 18, 19, 20, 74, 75, 40, 285}
"""System calls of x86-64 whose first argument is a file: read, write, pread, pwrite, readv, writev,
fsync, fdatasync, sendfile, fallocate.
"""


def describe(pid: int, tid: int) -> dict[str, Any]:
    """``{pid, state, wchan, path, mount}`` of a thread; empty texts for what is not told."""
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
    path = _file(pid, task)
    return {
        "pid": pid,
        "state": state,
        "wchan": "" if wchan == "0" else wchan,
        "path": path,
        "mount": _mount(pid, path),
    }


def _file(pid: int, task: str) -> str:
    """The file that the thread's system call is about."""
    words = (procfs.read_bytes(f"{task}/syscall") or b"").split()
    try:
        number, first = int(words[0]), int(words[1], 16)
    except (IndexError, ValueError):  # running, or not ours to look at
        return ""
    if number not in _ON_DESCRIPTOR or os.uname().machine != "x86_64":
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
