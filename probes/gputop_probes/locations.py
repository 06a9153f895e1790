"""Places of records and sockets on this machine (XDG base directories, else safe ones)."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

MAX_SOCKET_PATH = 107
"""Bytes of ``sockaddr_un.sun_path``, less its final zero."""
_SHORTEST_ID = 24
"""A run id cut to its last so many characters still tells runs apart."""
_NOWHERE = "/proc/nonexistent"
"""Nothing can be made there, so that a record goes to a fallback."""


def host_name() -> str:
    """This machine's name as a directory name."""
    return os.uname().nodename.replace("/", "_") or "localhost"


def runs_root() -> Path:
    """``$GPUTOP_RUNS_DIR``, else ``$XDG_STATE_HOME/gputop/runs``, else
    ``~/.local/state/gputop/runs``.

    An empty or relative ``$XDG_STATE_HOME`` counts as none. Without a home directory it is a place
    where nothing can be made.
    """
    chosen = os.environ.get("GPUTOP_RUNS_DIR")
    if chosen:
        return Path(os.path.join(working_directory(), chosen))
    return own_root()


def own_root() -> Path:
    """Where records lie unless told otherwise: ours alone, whoever made it."""
    return xdg_directory("XDG_STATE_HOME", ".local", "state") / "runs"


def xdg_directory(variable: str, *below_home: str) -> Path:
    """gputop's folder in an XDG base directory: what the variable names, or else below the user's
    home; a place where nothing can be read or made where there is no home.
    """
    base = os.environ.get(variable, "")
    if not os.path.isabs(base):
        base = os.path.join(_home(), *below_home)
    return Path(base, "gputop")


def working_directory() -> str:
    """The current directory; a place where nothing can be made where it was removed."""
    try:
        return os.getcwd()
    except OSError:
        return _NOWHERE


def _home() -> str:
    home = os.environ.get("HOME") or os.path.expanduser(f"~{_user_name()}")
    return home if os.path.isabs(home) else _NOWHERE


def _user_name() -> str:
    """As the user database has it; containers start processes of users that it does not know."""
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except (KeyError, OSError):
        return ""


def fallback_roots() -> Iterator[Path]:
    """Other places for records than the chosen one, best first; only this user's own."""
    for folder in _temporary_folders():
        for folder_ in [_own_folder(folder), *_spare_folders(folder)]:
            if is_private(folder_):
                yield folder_ / "runs"


def new_fallback_roots() -> Iterator[Path]:
    """The same for a new record: makes the directories.

    Where somebody else has taken the usual name, one that nobody can foresee.
    """
    for folder in _temporary_folders():
        private = _private_place(folder)
        if private is not None:
            yield private / "runs"


def _private_place(folder: str) -> Path | None:
    """Our directory below ``folder``, made if missing; None where none can be had."""
    for path in (_own_folder(folder), _spare_folder(folder)):
        try:
            return private_directory(path)
        except OSError:
            continue
    return None


def _temporary_folders() -> list[str]:
    """Memory comes last: in containers it is small, and the training's own workers need it."""
    runtime = _runtime_folder()
    chosen = os.environ.get("TMPDIR", "")
    folders = [runtime, chosen if os.path.isabs(chosen) else "", "/tmp", "/var/tmp", "/dev/shm"]
    return list(dict.fromkeys(filter(None, folders)))


def _runtime_folder() -> str:
    """``$XDG_RUNTIME_DIR`` if it is this user's; after ``sudo -E`` it is somebody else's."""
    folder = os.environ.get("XDG_RUNTIME_DIR", "")
    try:
        if os.path.isabs(folder) and os.stat(folder).st_uid == os.getuid():
            return folder
        return ""
    except OSError:
        return ""


def _own_folder(folder: str) -> Path:
    return Path(folder, "gputop" if folder == _runtime_folder() else f"gputop-{os.getuid()}")


def _spare_folder(folder: str) -> Path:
    return Path(folder, f"gputop-{os.getuid()}-{os.urandom(4).hex()}")


def _spare_folders(folder: str) -> list[Path]:
    start = f"gputop-{os.getuid()}-"
    try:
        return [Path(folder, name) for name in sorted(os.listdir(folder)) if name.startswith(start)]
    except OSError:
        return []


def socket_paths(run_id: str) -> Iterator[Path]:
    """Where a run's socket may lie, best first: always in a directory that only this user can
    enter.

    Makes the directories, and passes over those that cannot be had.
    """
    short = [folder for folder in (_runtime_folder(), "/tmp", "/dev/shm") if folder]
    for folder in dict.fromkeys([*short, *_temporary_folders()]):
        room = MAX_SOCKET_PATH - len(os.fsencode(f"{_spare_folder(folder)}/.sock"))
        if room < _SHORTEST_ID:
            continue
        private = _private_place(folder)
        if private is not None:
            yield private / f"{run_id[-room:]}.sock"


def private_directory(path: Path) -> Path:
    """Make ``path`` with mode 0700, or check that it is ours alone. Its parent must exist.

    Raises:
        PermissionError: somebody else owns it, or it is a link.
        OSError: it cannot be made.
    """
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        pass
    if not is_private(path):
        raise PermissionError(13, "not a directory of this user", str(path))
    if path.lstat().st_mode & 0o777 != 0o700:
        path.chmod(0o700)
    return path


def is_private(path: Path) -> bool:
    """Whether ``path`` is a directory of this user, and no link to one."""
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
