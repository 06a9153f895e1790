"""The folder a script wrote into: read and removed without following its links."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import tempfile
from typing import Any, Dict, Iterator, Optional

_MOST_JSON = 16 << 20


@contextlib.contextmanager
def scratch() -> Iterator[str]:
    """A folder, gone afterwards. ``TemporaryDirectory`` changes the modes of links' targets."""
    folder = tempfile.mkdtemp(prefix="gputop-trace-")
    try:
        yield folder
    finally:
        remove(folder)


def remove(folder: str) -> None:
    """Remove a folder, also one whose modes forbid it."""
    with contextlib.suppress(OSError, RecursionError):
        for parent, folders, _ in os.walk(folder):
            for name in folders:
                path = os.path.join(parent, name)
                if stat.S_ISDIR(os.lstat(path).st_mode):
                    os.chmod(path, 0o700)
    with contextlib.suppress(RecursionError):
        shutil.rmtree(folder, ignore_errors=True)


def is_file(path: str) -> bool:
    """Whether it is a file itself: no link, no pipe."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False


def read_json(path: str) -> Optional[Dict[str, Any]]:
    """The object in a file, or None where there is none."""
    if not is_file(path) or os.path.getsize(path) > _MOST_JSON:
        return None
    try:
        with open(path, encoding="utf-8") as text:
            data = json.load(text)
    except (OSError, ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None
