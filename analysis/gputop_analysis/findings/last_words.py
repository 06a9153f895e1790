"""The exception that a command printed before it ended, from the end of its recorded output."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import NamedTuple

from gputop_analysis.view import RunView

TAIL_BYTES = 32_768
_HEAD = "Traceback (most recent call last):"
_FRAME = re.compile(r'^  File "([^"]+)", line (\d+), in (\S+)')
_RAISED = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Warning)\b(?::.*)?$")
_PACKAGES = ("site-packages", "dist-packages", "<frozen", f"{os.sep}lib{os.sep}python")


class LastWords(NamedTuple):
    """What the last traceback in the output says."""

    what: str
    """``ValueError: a shard is missing``."""
    site: str | None
    """``train.py:118 main``, the innermost line outside of packages; None where there is none."""


def last_words(view: RunView) -> LastWords | None:
    """The last traceback in the recorded output of any host; None where none was printed."""
    for host in view.record.hosts.values():
        for name in ("stderr.log", "output.log"):
            if words := parsed(_tail(host.path / name)):
                return words
    return None


def parsed(text: str) -> LastWords | None:
    """The exception of the last traceback in a text."""
    _, heading, after = text.rpartition(_HEAD)
    if not heading:
        return None
    site = error_text = None
    for line in after.splitlines():
        if frame := _FRAME.match(line):
            path, number, function = frame.groups()
            if not any(part in path for part in _PACKAGES):
                site = f"{os.path.basename(path)}:{number} {function}"
        elif _RAISED.match(line):
            error_text = line.strip()
            break
    return LastWords(error_text, site) if error_text else None


def _tail(path: Path) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return ""
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return ""
        read = os.pread(descriptor, TAIL_BYTES, max(0, status.st_size - TAIL_BYTES))
        return read.decode(errors="replace")
    except OSError:
        return ""
    finally:
        os.close(descriptor)
