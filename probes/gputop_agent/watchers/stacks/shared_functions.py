"""Calls of functions that several lines call: what costs there is the call, not the function."""

import linecache
import re
from functools import lru_cache

from gputop_agent.runtime import frames

_MAX_FILES, _MAX_LINES = 64, 5000
_DEFINES = re.compile(r"\s*(?:async )?def (\w+)\(")
_CALLS = re.compile(r"(?<![\w.])(?:self\.)?(\w+)\(")


def calls_in(lines):
    """Those of a path's lines (``train.py:118 loss``) that call the function of the next one, where
    its file has one alone of that name, and other lines of theirs call it, too, by its bare name or
    on ``self``: the method of another object may be that of any class.
    """
    return [line for line, called in zip(lines, lines[1:]) if _is_shared(line, called)]


def _is_shared(line, called):
    site, _, _ = line.partition(" ")
    called_site, _, name = called.partition(" ")
    if len(_lines_by_name(frames.file_of(called_site), _DEFINES).get(name, ())) != 1:
        return False
    calls = _lines_by_name(frames.file_of(site), _CALLS).get(name, ())
    return len(calls) > 1 and int(site.rpartition(":")[2]) in calls


@lru_cache(maxsize=2 * _MAX_FILES)
def _lines_by_name(file, pattern):
    """Numbers of a file's lines by the names in them of a pattern; a definition calls nothing."""
    lines = linecache.getlines(file)
    numbers = {}
    for number, line in enumerate(lines[:_MAX_LINES], 1):
        if line.lstrip().startswith("#") or (pattern is _CALLS and _DEFINES.match(line)):
            continue
        for name in pattern.findall(line):
            numbers.setdefault(name, set()).add(number)
    return numbers
