"""Two trees of files seen as one: the user's, which is only read, and the script's own above it.

The script's folder stands for the one where the command was given, and is empty at first. A name
that is asked for and that the user's folder has appears in it as a link, so that C code finds it
too. Before anything is written beneath a link, the link becomes a folder of links. Files of all
other places have theirs in a mirror.
"""

from __future__ import annotations

import itertools
import os
import shutil
import stat
from typing import Any, Optional, Set

_MOST_LINKS = 5000
"""Of one folder written into; what a larger one has beyond has its absolute name alone."""
_MOST_COPIED = 64 << 20
_ANYWHERE = ("/dev/", "/proc/", "/sys/")
_open, _stat, _lstat, _scandir, _mkdir, _unlink = (
    open,
    os.stat,
    os.lstat,
    os.scandir,
    os.mkdir,
    os.unlink,
)
_rmtree, _readlink, _symlink = shutil.rmtree, os.readlink, os.symlink


class Overlay:
    """Where a file is read and where it is written; made before any function of ``os`` is replaced.

    Args:
        home: the user's folder.
        folder: the script's own in its place, in a folder that is the trace's.
        links: whether links into ``home`` are safe, since the kernel refuses what C code would
            write through them.
    """

    def __init__(self, home: str, folder: str, links: bool) -> None:
        self.home, self.folder, self.links = os.path.realpath(home), os.path.realpath(folder), links
        self.mirror = os.path.join(os.path.dirname(self.folder), "elsewhere")
        self._removed: Set[str] = set()

    def to_read(self, path: Any) -> str:
        """The name under which the system finds a file for the script."""
        name = os.fspath(path)
        full = self._full(name)
        name = full if full != os.path.abspath(name) else name
        location = self.place(full)
        if location is None:
            return name
        if location in self._removed:
            return location
        if location != full:
            return location if self._is_made(location) else name
        twin = self._twin(location)
        if twin is None or _there(location) or not _there(twin, _stat):
            return name
        if not self.links:
            return twin
        first = os.path.join(self.folder, os.path.relpath(location, self.folder).split(os.sep)[0])
        if not _there(first) and first not in self._removed:
            _symlink(str(self._twin(first)), first)
        return name

    def to_write(self, path: Any, keeps: bool) -> str:
        """The name under which a file may be written; with what it holds if that is kept."""
        location = self.place(self._full(os.fspath(path)))
        if location is None:
            return os.fspath(path)
        self._own(os.path.dirname(location))
        if self._is_link(location) or not _there(location):
            twin = self._twin(location)
            if self._is_link(location):
                _unlink(location)
            if keeps and twin and location not in self._removed:
                _copy(twin, location)
        self._removed.discard(location)
        return location

    def remove(self, path: Any, original: Any) -> None:
        """Remove a file or a folder for the script; what the user has stays, and is not seen any
        more.

        Raises:
            OSError: there is none, or it cannot be removed.
        """
        name = self.to_read(path)
        location = self.place(self._full(name))
        if location is None or not _there(name):
            original(name)
            return
        self._own(os.path.dirname(location))
        if self._is_link(location):
            _unlink(location)
        elif _there(location):
            original(location)
        self.forget(location)

    def forget(self, place: str) -> None:
        """What the user has there is not seen any more."""
        self._removed.add(place)

    def place(self, full: str) -> Optional[str]:
        """The script's own place for a file; None for devices, which have none."""
        if full == self.folder or full.startswith((os.path.dirname(self.folder) + os.sep,)):
            return full
        if full.startswith(_ANYWHERE):
            return None
        if full == self.home or full.startswith(self.home.rstrip(os.sep) + os.sep):
            return os.path.join(self.folder, os.path.relpath(full, self.home))
        return self.mirror + full

    def is_made(self, path: Any) -> bool:
        """Whether a file is the script's own, and no link to the user's."""
        location = self.place(self._full(os.fspath(path)))
        return location is None or self._is_made(location)

    def _full(self, name: str) -> str:
        """The absolute name; one out of the script's folder (``../data``) leads from the user's."""
        full = os.path.abspath(name)
        if os.path.isabs(name) or _is_beneath(full, self.folder):
            return full
        here = os.getcwd()
        if not _is_beneath(here, self.folder):
            return full
        return os.path.normpath(os.path.join(self.home, os.path.relpath(here, self.folder), name))

    def _twin(self, place: str) -> Optional[str]:
        """What the user has at a place."""
        if place.startswith(self.folder + os.sep):
            return os.path.join(self.home, os.path.relpath(place, self.folder))
        if place.startswith(self.mirror + os.sep):
            return place[len(self.mirror) :]
        return None

    def _own(self, folder: str) -> None:
        """Make a folder the script's own, with links to what the user has in it."""
        if folder in (self.folder, self.mirror):
            if not _there(folder):
                _mkdir(folder)
            return
        twin = self._twin(folder)
        if twin is None:
            return
        self._own(os.path.dirname(folder))
        if (
            (_there(folder) and not self._is_link(folder))
            or folder in self._removed
            or not _is_folder(twin)
        ):
            return
        if _there(folder):
            _unlink(folder)
        _mkdir(folder)
        if self.links:
            with _scandir(twin) as entries:
                for entry in itertools.islice(entries, _MOST_LINKS):
                    _symlink(entry.path, os.path.join(folder, entry.name))

    def _is_link(self, place: str) -> bool:
        """Whether it is one of ours."""
        return (
            _there(place)
            and stat.S_ISLNK(_lstat(place).st_mode)
            and _readlink(place) == self._twin(place)
        )

    def _is_made(self, place: str) -> bool:
        if not _there(place):
            return False
        while place not in (self.folder, self.mirror, os.sep):
            if self._is_link(place):
                return False
            place = os.path.dirname(place)
        return True


def _is_beneath(full: str, folder: str) -> bool:
    return full == folder or full.startswith(folder + os.sep)


def remove_tree(path: str) -> None:
    """``shutil.rmtree`` as it was."""
    _rmtree(path)


def _there(path: str, look: Any = _lstat) -> bool:
    try:
        look(path)
    except (OSError, ValueError):
        return False
    return True


def _is_folder(path: str) -> bool:
    return _there(path, _stat) and stat.S_ISDIR(_stat(path).st_mode)


def _copy(source: str, target: str) -> None:
    """A file of the user as far as it is needed to write on: larger ones begin empty."""
    if _there(source, _stat) and stat.S_ISREG(_stat(source).st_mode):
        with _open(source, "rb") as old, _open(target, "wb") as new:
            if _stat(source).st_size <= _MOST_COPIED:
                shutil.copyfileobj(old, new)
