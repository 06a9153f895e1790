"""What a command printed before it ended, from the end of its recorded output."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from gputop_analysis.findings.crash.tracebacks import (
    ESCAPES,
    LastWords,
    fatal_error,
    of_a_child,
    parsed,
)
from gputop_analysis.hangs.last_output import last_outputs
from gputop_analysis.view import RunView
from gputop_probes import redact
from gputop_probes.record.plain import plain_line

LONGEST = 160
_PROGRESS = re.compile(r"\d+%\||it/s\b|s/it\b")
"""Of a bar as tqdm draws it."""
_EXIT_CODE = re.compile(r"exitcode *: (-?\d{1,3})\)?(?: local_rank: \d+)? \(pid: (\d+)\)")
"""As torchrun tells of each process: its code and number."""
_ROOT_CAUSE = re.compile(
    r"Root Cause \(first observed failure\):\n\[\d+\]:\n(?:  (?:time|host) .*\n)*"
    r"  rank +: (\d+) .*\n  exitcode +: (-?\d{1,3}) "
)
_SPAWNED_EXIT = re.compile(r"ProcessExitedException: process (\d+) terminated with exit code (\d+)")


class FirstEnd(NamedTuple):
    """The process that a launcher saw end first."""

    rank: int
    code: int
    """Its exit code, negative for a signal."""


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


def first_end(view: RunView) -> FirstEnd | None:
    """The process that ended first, as ``torch.multiprocessing.spawn`` tells of one that raised
    nothing (on one host a rank), or as torchrun tells of its root cause; None: neither does.
    """
    for text in last_outputs(view):
        if match := _SPAWNED_EXIT.search(text) or _ROOT_CAUSE.search(ESCAPES.sub("", text)):
            return FirstEnd(int(match[1]), int(match[2]))
    return None


def has_terminated(view: RunView) -> bool:
    """Whether C++ said that it ended a process whose thread had raised nothing."""
    return any("terminate called without an active exception" in t for t in last_outputs(view))


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
