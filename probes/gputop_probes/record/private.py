"""Makes files and folders that only their owner can read: a record tells much of a run."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

FILE_MODE, FOLDER_MODE = 0o600, 0o700


def open_private(path: str | os.PathLike[str], flags: int) -> int:
    """Open a file, made with mode 0600 if need be; one of an earlier version is closed to others
    too.

    Raises:
        OSError: it cannot be opened.
    """
    descriptor = os.open(path, flags | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    status = os.fstat(descriptor)
    if (
        stat.S_ISREG(status.st_mode)
        and stat.S_IMODE(status.st_mode) != FILE_MODE
        and status.st_uid == os.geteuid()
    ):
        with contextlib.suppress(OSError):  # a file system without modes
            os.fchmod(descriptor, FILE_MODE)
    return descriptor


def make_folder(path: Path, *, exist_ok: bool = True) -> None:
    """Make a folder and those above it that are missing, each with mode 0700; what is there stays
    as it is.

    Raises:
        OSError: it cannot be made.
    """
    missing = [path]
    while not missing[-1].parent.exists():
        missing.append(missing[-1].parent)
    for folder in reversed(missing):
        try:
            os.mkdir(folder, FOLDER_MODE)
        except FileExistsError:
            if folder is path and not exist_ok:
                raise
            if not folder.is_dir():
                raise
            continue
        with contextlib.suppress(OSError):
            os.chmod(folder, FOLDER_MODE)


def close_to_others(folder: Path) -> None:
    """Take others' rights off a folder of ours that an earlier version made."""
    with contextlib.suppress(OSError):
        status = folder.lstat()
        if (
            stat.S_ISDIR(status.st_mode)
            and status.st_uid == os.geteuid()
            and stat.S_IMODE(status.st_mode) & 0o077
        ):
            os.chmod(folder, FOLDER_MODE)
