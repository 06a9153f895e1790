"""What a command printed before it ended, from the end of its recorded output."""

from __future__ import annotations

import re
from collections.abc import Callable

from gputop_analysis.findings.crash.tracebacks import (
    ESCAPES,
    LastWords,
    fatal_error,
    of_a_child,
    parsed,
)
from gputop_analysis.last_output import last_outputs
from gputop_analysis.view import RunView
from gputop_probes import redact
from gputop_probes.record.plain import plain_line

LONGEST = 160
_PROGRESS = re.compile(r"\d+%\||it/s\b|s/it\b")
"""Of a bar as tqdm draws it."""
_EXIT_CODE = re.compile(r"exitcode *: (-?\d{1,3})\)?(?: local_rank: \d+)? \(pid: (\d+)\)")
"""As torchrun tells of each process: its code and number."""
_SPAWNED_EXIT = re.compile(r"ProcessExitedException: process (\d+) terminated with exit code (\d+)")


def last_words(view: RunView) -> LastWords | None:
    """The exception in the recorded output of any host that ended it; None: none was printed."""
    return _first(parsed, view)


def last_fault(view: RunView) -> LastWords | None:
    """What Python's fault handler said of a signal that native code made; None: nothing."""
    return _first(fatal_error, view)


def _first(read: Callable[[str], LastWords | None], view: RunView) -> LastWords | None:
    for text in last_outputs(view):
        if words := read(text):
            return words._replace(what=redact.text(words.what))
    return None


def childs_words(view: RunView) -> LastWords | None:
    """The first exception that ended a process of ``multiprocessing``; None: none was printed."""
    return _first(of_a_child, view)


def told_exit_code(view: RunView, pid: int) -> int | None:
    """The exit code of a process as its launcher printed it, negative for a signal; None: it did
    not.
    """
    for text in last_outputs(view):
        for code, told_pid in _EXIT_CODE.findall(text):
            if int(told_pid) == pid:
                return int(code)
    return None


def spawned_exit(view: RunView) -> tuple[int, int] | None:
    """The process that ``torch.multiprocessing.spawn`` saw end first, on one host a rank, and its
    exit code; None: it told of none that ended without an exception.
    """
    for text in last_outputs(view):
        if told := _SPAWNED_EXIT.search(text):
            return int(told[1]), int(told[2])
    return None


def last_line(view: RunView) -> str:
    """The last line with words in the recorded output but bars of progress, at most ``LONGEST``
    characters of it, made fit to be shown, without secrets; empty: nothing was printed.
    """
    for text in last_outputs(view):
        for line in reversed(text.splitlines()):
            shown = ESCAPES.sub("", line).strip()
            if re.search("[^\\W\\d_]", shown) and not _PROGRESS.search(shown):
                return plain_line(redact.text(shown)[:LONGEST])
    return ""
