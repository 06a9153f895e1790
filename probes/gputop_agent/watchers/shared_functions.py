"""Calls of functions that several lines call: what costs there is the call, not the function."""

import linecache
import re
from functools import lru_cache

from gputop_agent.runtime import frames

_MAX_FILES_AND_NAMES = 256
_NAME = re.compile(r"[A-Za-z_]\w*$")


def calls_in(lines):
    """Those of a path's lines (``train.py:118 loss``) that call the function of the next one, where
    that is a module's own, and other lines of their file call it by name, too.
    """
    return [line for line, called in zip(lines, lines[1:]) if _is_shared(line, called)]


def _is_shared(line, called):
    site, _, _ = line.partition(" ")
    called_site, _, name = called.partition(" ")
    if not _NAME.match(name) or not _is_of_module(frames.file_of(called_site), name):
        return False
    calls = _calls(frames.file_of(site), name)
    return len(calls) > 1 and int(site.rpartition(":")[2]) in calls


@lru_cache(maxsize=_MAX_FILES_AND_NAMES)
def _is_of_module(file, name):
    head = re.compile(r"def %s\(" % name)
    return any(head.match(line) for line in linecache.getlines(file))


@lru_cache(maxsize=_MAX_FILES_AND_NAMES)
def _calls(file, name):
    """Numbers of the lines of a file that call a function by its bare name."""
    call = re.compile(r"(?<![\w.])%s\(" % name)
    return {
        number
        for number, line in enumerate(linecache.getlines(file), 1)
        if call.search(line) and not line.lstrip().startswith(("def ", "#"))
    }
