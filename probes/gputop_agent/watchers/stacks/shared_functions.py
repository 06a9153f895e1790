"""Calls of functions that several lines call: what costs there is the call, not the function."""

import linecache
import re
from functools import lru_cache

from gputop_agent.runtime import frames

_MAX_FILES, _MAX_LINES = 64, 5000
_DEFINES = re.compile(r"\s*(?:async )?def (\w+)\(")
_CALLS = re.compile(r"(?<![\w.])(self\.(?:\w+\.)*\w+|\w+)\(")


def calls_in(lines):
    """Those of a path's lines (``train.py:118 loss``) that call the function of the next one, where
    its file has one alone of that name, and other lines of theirs call it, too, in the same words:
    ``area(`` or ``self.tokenizer.encode(``. On another object it may be that of any class.
    """
    return [line for line, called in zip(lines, lines[1:]) if _is_shared(line, called)]


def _is_shared(line, called):
    site, _, _ = line.partition(" ")
    called_site, _, name = called.partition(" ")
    if len(_lines_by_words(frames.file_of(called_site), _DEFINES).get(name, ())) != 1:
        return False
    calls = _calls_by_name(frames.file_of(site)).get(name, ())
    shared = [numbers for numbers in calls if len(numbers) > 1]
    return any(int(site.rpartition(":")[2]) in numbers for numbers in shared)


@lru_cache(maxsize=_MAX_FILES)
def _calls_by_name(file):
    """Numbers of the lines that call a function in the same words, by the function's name."""
    calls = {}
    for words, numbers in _lines_by_words(file, _CALLS).items():
        calls.setdefault(words.rpartition(".")[2], []).append(numbers)
    return calls


@lru_cache(maxsize=2 * _MAX_FILES)
def _lines_by_words(file, pattern):
    """Numbers of a file's lines by what a pattern finds in them; a definition calls nothing."""
    lines = linecache.getlines(file)
    numbers = {}
    for number, line in enumerate(lines[:_MAX_LINES], 1):
        if line.lstrip().startswith("#") or (pattern is _CALLS and _DEFINES.match(line)):
            continue
        for words in pattern.findall(line):
            numbers.setdefault(words, set()).add(number)
    return numbers
