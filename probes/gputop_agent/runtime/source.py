"""Lines of the user's loaded files."""

import sys
from functools import lru_cache

from gputop_agent.runtime import frames, interrupts

_MAX_LINES = 100_000  # that are searched
_TOGETHER = 12  # lines of one file that lie so near are one place, as the branches of an if


@lru_cache(maxsize=16)
def place_with(*words):
    """``"train.py:9"`` where one line alone of the user's loaded files has the words, or the first
    of some that stand together; else None.

    The files are read once for the same words.
    """
    files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    lines_found, searched = [], 0
    for file in filter(None, files):
        if frames.origin(file) != frames.USER or not file.endswith(".py"):
            continue
        try:
            with open(file, errors="replace") as lines:
                for number, line in enumerate(lines, 1):
                    searched += 1
                    if words[0] in line and _has_all(line, words):
                        lines_found.append((file, number))
        except OSError:
            interrupts.pass_on()
        if searched > _MAX_LINES:
            return None
    return place_of(lines_found)


def place_of(lines):
    """``"train.py:9"`` of the first of some (file, line number) that stand together; else None."""
    if not lines:
        return None
    (file, first), (last_file, last) = min(lines), max(lines)
    if file != last_file or last - first > _TOGETHER:
        return None
    return "%s:%d" % (frames.short_name(file), first)


def _has_all(line, words):
    code = line.partition("#")[0]
    return all(word in code for word in words)
