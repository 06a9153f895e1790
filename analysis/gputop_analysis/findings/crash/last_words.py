"""The exception that a command printed before it ended, from the end of its recorded output."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from gputop_analysis.last_output import last_outputs
from gputop_analysis.view import RunView
from gputop_probes.record.plain import plain_line

_HEAD = "Traceback (most recent call last):"
_FRAME = re.compile(r'^  File "([^"]+)", line (\d+), in (\S+)')
_RAISED = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Warning)\b(?::.*)?$")
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))")
"""Colours and the like, titles and links."""
LONGEST = 160
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


def last_line(view: RunView) -> str:
    """The last line with words in the recorded output, at most ``LONGEST`` characters of it, made
    fit to be shown; empty: nothing was printed.
    """
    for text in last_outputs(view):
        for line in reversed(text.splitlines()):
            shown = _ESCAPES.sub("", line).strip()
            if re.search("[^\\W\\d_]", shown):
                return plain_line(shown[:LONGEST])
    return ""


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
