"""The exception that a command printed before it ended, from the end of its recorded output."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from gputop_analysis.last_output import last_outputs
from gputop_analysis.view import RunView

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
    for text in last_outputs(view):
        if words := parsed(text):
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
