"""Reads files of a record that anybody may have put there: never blocks, never reads without a
bound.

Standard library only.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gputop_agent import wire

JSON_BYTES = 16 << 20
"""A manifest or state that is longer was not written by gputop."""
LINE_BYTES = 4 << 20
"""The longest line of events that is read; the recorder's are far shorter."""
FILES_AT_MOST = 65_536
"""Files of ranks, and folders of hosts, that are looked at."""
_RANK_FILE = re.compile(r"rank-(\d{1,7})\.bin")
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


def open_regular(path: str | os.PathLike[str]) -> int:
    """Descriptor of a regular file. Pipes, sockets and devices are refused before they can block.

    Raises:
        OSError: there is none, or it is something else.
    """
    descriptor = os.open(path, _FLAGS)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "it is a directory", str(path))
    raise OSError(errno.EINVAL, "it is no regular file", str(path))


def look_into(path: str | os.PathLike[str], read: Callable[[int], object]) -> str:
    """Have ``read`` look at the descriptor of a file that grows. A file that is not there yet is no
    problem.

    Returns:
        Why it cannot be read, or nothing.
    """
    try:
        descriptor = open_regular(path)
    except FileNotFoundError:
        return ""
    except OSError as error:
        return str(error.strerror)
    try:
        read(descriptor)
    except (OSError, ValueError) as error:  # also where there is no room to map it
        return str(getattr(error, "strerror", None) or error)
    finally:
        os.close(descriptor)
    return ""


def read_bytes(path: str | os.PathLike[str], limit: int = JSON_BYTES) -> bytes:
    """The content of a regular file of at most ``limit`` bytes.

    Raises:
        OSError: it cannot be read, is no regular file or is larger.
    """
    with os.fdopen(open_regular(path), "rb") as file:
        if os.fstat(file.fileno()).st_size > limit:
            raise OSError(errno.EFBIG, f"it is larger than {limit >> 20} MiB", str(path))
        return file.read(limit)


def read_tail(path: str | os.PathLike[str], size: int) -> bytes:
    """The last ``size`` bytes of a regular file.

    Raises:
        OSError: it cannot be read or is no regular file.
    """
    with os.fdopen(open_regular(path), "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - size))
        return file.read(size)


def tail_text(path: str | os.PathLike[str], size: int) -> str:
    """The last ``size`` bytes of a file as text; empty where it cannot be read."""
    try:
        return read_tail(path, size).decode(errors="replace")
    except OSError:
        return ""


def parse_json(data: str | bytes) -> Any:
    """JSON of any content.

    Raises:
        ValueError: it is no JSON, or nested too deep.
    """
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("nested too deep") from None


def read_json(path: str | os.PathLike[str]) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        OSError: it cannot be read, is no regular file or is too large.
        ValueError: it is no JSON object.
    """
    parsed = parse_json(read_bytes(path))
    if not isinstance(parsed, dict):
        raise ValueError("no JSON object")
    return parsed


def json_or_empty(path: str | os.PathLike[str]) -> dict[str, Any]:
    """A JSON object from a file; empty if it cannot be read."""
    try:
        return read_json(path)
    except (OSError, ValueError):
        return {}


def is_directory(path: Path) -> bool:
    """Whether it is a directory; False for what cannot be looked at."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def is_regular(path: Path) -> bool:
    """Whether it is a file, and no pipe, device or socket; False for what cannot be looked at."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except (OSError, ValueError):
        return False


def exists(path: Path) -> bool:
    """Whether it is there; False for what cannot be looked at."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def rank_files(folder: Path) -> Iterator[tuple[int, Path]]:
    """Files of ranks in ``steps``, ``device`` or ``comm``, by rank; no other names."""
    named = ((_RANK_FILE.fullmatch(name), name) for name in _names(folder))
    ranks = ((int(match.group(1)), name) for match, name in named if match)
    for rank, name in sorted(ranks):
        if rank <= wire.MAX_RANK:
            yield rank, folder / name


def host_folders(run_dir: Path) -> list[Path]:
    """The folders of the hosts that took part, by name."""
    folder = run_dir / "hosts"
    return [folder / name for name in sorted(_names(folder)) if is_directory(folder / name)]


def _names(folder: Path) -> list[str]:
    names: list[str] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                names.append(entry.name)
                if len(names) >= FILES_AT_MOST:
                    break
    except OSError:
        pass
    return names
