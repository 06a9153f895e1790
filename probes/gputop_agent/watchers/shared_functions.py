"""Calls of functions that several lines call: what costs there is the call, not the function."""

import linecache
import re
from functools import lru_cache

from gputop_agent.runtime import frames

_MAX_FILES_AND_NAMES = 256
_NAME = re.compile(r"[A-Za-z_]\w*$")


def calls_in(lines):
    """Those of a path's lines (``train.py:118 loss``) that call the function of the next one, where
    its file has one alone of that name, and other lines of theirs call it, too, by its bare name or
    on ``self``: the method of another object may be that of any class.
    """
    return [line for line, called in zip(lines, lines[1:]) if _is_shared(line, called)]


def _is_shared(line, called):
    site, _, _ = line.partition(" ")
    called_site, _, name = called.partition(" ")
    if not _NAME.match(name) or not _is_the_only_one(frames.file_of(called_site), name):
        return False
    calls = _calls(frames.file_of(site), name)
    return len(calls) > 1 and int(site.rpartition(":")[2]) in calls


@lru_cache(maxsize=_MAX_FILES_AND_NAMES)
def _is_the_only_one(file, name):
    head = re.compile(r"\s*def %s\(" % name)
    return sum(bool(head.match(line)) for line in linecache.getlines(file)) == 1


@lru_cache(maxsize=_MAX_FILES_AND_NAMES)
def _calls(file, name):
    """Numbers of the lines of a file that call a function by its bare name, or on ``self``."""
    call = re.compile(r"(?<![\w.])(?:self\.)?%s\(" % name)
    return {
        number
        for number, line in enumerate(linecache.getlines(file), 1)
        if call.search(line) and not line.lstrip().startswith(("def ", "#"))
    }
