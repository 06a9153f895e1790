"""Watching without a screen: wait, and see to it that all output has been passed on.

Signals are passed on by the handle (``Relay``).
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from gputop.cli.notices import notice
from gputop_probes.record import layout

if TYPE_CHECKING:
    from gputop_probes.launch import RunHandle

_POLL_S = 0.05
_CALIBRATE_POLL_S = 1.0
_START_S = 10.0
"""After this long without a step it is said what the time went into."""


class EndRule(Protocol):
    """Asked some twenty times a second whether the command is to end, and ends it."""

    def tick(self) -> None: ...


def watch(
    handle: RunHandle, calibrate: bool, timeout_s: float | None, rule: EndRule | None = None
) -> int:
    """Follow the run until its command ends.

    Args:
        handle: the started run.
        calibrate: stop the command once its figures are stable.
        timeout_s: with ``calibrate``, stop it after this many seconds at the latest.
        rule: when else to stop it.

    Returns:
        The command's exit code, 128+n after signal n.
    """
    handle.show_output()
    stop_rule = _StopRule(handle, timeout_s) if calibrate else rule
    start = StartLine(handle.host_dir)
    with _keyboard(handle):
        code = handle.wait(_POLL_S)
        while code is None:
            if stop_rule is not None:
                stop_rule.tick()
            start.tick()
            code = handle.wait(_POLL_S)
    handle.pass_on_output()
    if handle.unfinished_line():
        print(file=sys.stderr)
    return code


class StartLine:
    """Where the time went so far, said once of a command that takes long to its first step."""

    def __init__(self, host_dir: Path, after_s: float = _START_S):
        self._host_dir = host_dir
        self._due = time.monotonic() + after_s
        self._said = False

    def tick(self) -> None:
        """Say it when it is due."""
        if not self._said and time.monotonic() >= self._due:
            self._said = True
            try:
                line = self._line()
            except Exception:  # a word less, and nothing that the command would notice
                return
            if line:
                notice(line)

    def _line(self) -> str:
        """Empty where a rank trains already, or no milestone is known."""
        from gputop_analysis.startup import Startup, come_furthest, split
        from gputop_probes.record.events import GrowingLines

        events = GrowingLines(self._host_dir / layout.EVENTS_FILE)
        events.refresh()
        events_of_one = come_furthest(list(events.of(("startup",))))
        began = next(events.of(("run_start",)), None)
        if not events_of_one or began is None or any(events.of(("rank_start",))):
            return ""
        now_ns = time.time_ns()
        parts = tuple(split(events_of_one, began["t_ns"], now_ns))
        so_far = Startup(None, began["t_ns"], now_ns, False, parts, True)
        return f"no step after {so_far.seconds:.0f} s: {so_far.words()}"


def _keyboard(handle: RunHandle) -> AbstractContextManager[object]:
    """With ``--pty``, what is typed is the command's; without, it reads the terminal itself."""
    if handle.console is None or not sys.stdin.isatty():
        return nullcontext()
    from gputop_probes.keyboard import Keyboard, Keys, TypedThrough

    keys = Keys(
        interrupt=lambda: os.kill(os.getpid(), signal.SIGINT),
        suspend=lambda: os.kill(os.getpid(), signal.SIGTSTP),
    )
    return TypedThrough(Keyboard(handle.console, handle.pgid, keys))


class _StopRule:
    """``--calibrate``: stop when step time, memory and utilisation are stable, or time is up."""

    def __init__(self, handle: RunHandle, timeout_s: float | None):
        self._handle = handle
        if timeout_s:
            self._deadline = time.monotonic() + timeout_s
        else:
            self._deadline = float("inf")
        self._next = time.monotonic() + _CALIBRATE_POLL_S
        self._stopped = False

    def tick(self) -> None:
        """Look at most once a second."""
        now_s = time.monotonic()
        if self._stopped or now_s < self._next:
            return
        self._next = now_s + _CALIBRATE_POLL_S
        steps, reasons = self._judged()
        if not reasons:
            self._stop(f"figures stable after {steps:,} steady steps")
        elif now_s >= self._deadline:
            self._stop("its --timeout came before the figures were stable: " + "; ".join(reasons))

    def _judged(self) -> tuple[int, list[str]]:
        """Steady steps, and why the figures are not stable yet; empty when they are."""
        from gputop_analysis.calibrate import stable
        from gputop_probes.record.reader import RunRecord

        try:
            stability = stable(RunRecord.open(self._handle.run_dir))
        except (
            Exception
        ) as error:  # whatever is wrong with the judgement, the command runs on to the timeout
            return 0, [f"{type(error).__name__}: {error}"]
        return stability.steps, [] if stability.stable else list(stability.reasons)

    def _stop(self, why: str) -> None:
        notice(f"{why}; stopping the command")
        self._stopped = True
        self._handle.stop("calibrate", why)
