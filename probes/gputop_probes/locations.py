"""Where records and sockets lie on this machine (XDG base directories, and safe places where those are missing)."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

MAX_SOCKET_PATH = 107
"""Bytes of ``sockaddr_un.sun_path``, less its final zero."""
_SHORTEST_ID = 24
"""A run id cut to its last so many characters still tells runs apart."""


def host_name() -> str:
    """This machine's name as a directory name."""
    return os.uname().nodename.replace("/", "_") or "localhost"


def runs_root() -> Path:
    """``$GPUTOP_RUNS_DIR``, else ``$XDG_STATE_HOME/gputop/runs``, else ``~/.local/state/gputop/runs``."""
    chosen = os.environ.get("GPUTOP_RUNS_DIR")
    if chosen:
        return Path(chosen).absolute()
    return own_root()


def own_root() -> Path:
    """``$XDG_STATE_HOME/gputop/runs``, else ``~/.local/state/gputop/runs``: ours alone, whoever made it."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(state, "gputop", "runs").absolute()


def fallback_roots() -> list[Path]:
    """Where records go when the disk of the chosen place is full, best first."""
    temporary = os.environ.get("TMPDIR") or "/tmp"
    places = [os.path.join(folder, f"gputop-{os.getuid()}") for folder in ("/dev/shm", temporary)]
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime:
        places.insert(0, os.path.join(runtime, "gputop"))
    return [Path(place, "runs") for place in places]


def socket_paths(run_id: str) -> Iterator[Path]:
    """Where a run's socket may lie, best first: always in a directory that only this user can enter."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    own = f"gputop-{os.getuid()}"
    folders = [*([Path(runtime, "gputop")] if runtime else []), Path("/tmp", own), Path("/dev/shm", own)]
    for folder in folders:
        room = MAX_SOCKET_PATH - len(os.fsencode(f"{folder}/.sock"))
        if room >= _SHORTEST_ID:
            yield folder / f"{run_id[-room:]}.sock"


def private_directory(path: Path) -> Path:
    """Make ``path`` with mode 0700, or check that it is ours alone.

    Raises:
        PermissionError: somebody else owns it, or it is a link.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        pass
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PermissionError(13, "not a directory of this user", str(path))
    if found.st_mode & 0o077:
        path.chmod(0o700)
    return path
