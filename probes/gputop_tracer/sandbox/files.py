"""Python's functions for files, replaced for a script: they read and write in its overlay."""

from __future__ import annotations

import builtins
import errno
import io
import os
import shutil
from typing import Any, Callable

from .overlay import Overlay, remove_tree

_READ = ("stat", "lstat", "statvfs", "access", "listdir", "scandir", "chdir")
_CHANGE = ("chmod", "chown", "utime", "truncate")


def redirect(overlay: Overlay) -> None:
    """Replace them for this process."""
    files = _Files(overlay)
    for module in (builtins, io):
        module.open = files.open  # type: ignore[attr-defined,assignment]
    for name in _READ:
        setattr(os, name, files.reading(getattr(os, name)))
    for name in _CHANGE:
        setattr(os, name, files.changing(getattr(os, name)))
    for name in ("remove", "unlink", "rmdir"):
        setattr(os, name, files.removing(getattr(os, name)))
    for name in ("rename", "replace"):
        setattr(os, name, files.renaming(getattr(os, name)))
    os.mkdir, os.open = files.mkdir, files.open_low  # type: ignore[assignment]
    shutil.rmtree = files.rmtree  # type: ignore[assignment]


class _Files:
    def __init__(self, overlay: Overlay) -> None:
        self.overlay = overlay
        self._open, self._open_low, self._mkdir, self._lstat = (
            builtins.open,
            os.open,
            os.mkdir,
            os.lstat,
        )

    def open(self, file: Any, mode: Any = "r", *arguments: Any, **options: Any) -> Any:
        if _named(file) and isinstance(mode, str):
            writes = set(mode) & set("wax+")
            if writes:
                file = self.overlay.to_write(file, "w" not in mode)
            else:
                file = self.overlay.to_read(file)
        return self._open(file, mode, *arguments, **options)

    def open_low(self, path: Any, flags: int, *arguments: Any, **options: Any) -> int:
        if _named(path, options):
            writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            if writes:
                path = self.overlay.to_write(path, not flags & os.O_TRUNC)
            else:
                path = self.overlay.to_read(path)
        return self._open_low(path, flags, *arguments, **options)

    def mkdir(self, path: Any, *arguments: Any, **options: Any) -> None:
        if _named(path, options):
            source = self.overlay.to_read(path)
            if os.path.lexists(source):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fspath(path))
            path = self.overlay.to_write(path, keeps=False)
        self._mkdir(path, *arguments, **options)

    def rmtree(
        self, path: Any, ignore_errors: bool = False, *_arguments: Any, **_options: Any
    ) -> None:
        try:
            self.overlay.remove(path, remove_tree)
        except OSError:
            if not ignore_errors:
                raise

    def reading(self, original: Callable[..., Any]) -> Any:
        def read(path: Any = ".", *arguments: Any, **options: Any) -> Any:
            return original(
                self.overlay.to_read(path) if _named(path, options) else path, *arguments, **options
            )

        return read

    def changing(self, original: Callable[..., Any]) -> Any:
        """Modes and times of the user's files stay as they are."""

        def change(path: Any, *arguments: Any, **options: Any) -> Any:
            if not _named(path, options):
                return original(path, *arguments, **options)
            if not self.overlay.is_made(path):
                return None
            return original(self.overlay.to_read(path), *arguments, **options)

        return change

    def removing(self, original: Callable[..., Any]) -> Any:
        def remove(path: Any, **options: Any) -> None:
            if _named(path, options):
                self.overlay.remove(path, original)
            else:
                original(path, **options)

        return remove

    def renaming(self, original: Callable[..., Any]) -> Any:
        def rename(source: Any, target: Any, **options: Any) -> None:
            if not (_named(source, options) and _named(target, options)):
                original(source, target, **options)
                return
            target_ = self.overlay.to_write(source, keeps=True)
            original(target_, self.overlay.to_write(target, keeps=False))
            self.overlay.forget(target_)

        return rename


def _named(path: Any, options: Any = {}) -> bool:
    """Whether a file is given by its name, and not by a number or beneath an open folder."""
    if any(options.get(word) is not None for word in ("dir_fd", "src_dir_fd", "dst_dir_fd")):
        return False
    return isinstance(path, str) or (
        isinstance(path, os.PathLike) and isinstance(os.fspath(path), str)
    )
