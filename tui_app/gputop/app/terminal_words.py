"""What the terminal shows of a run outside of the screen: title, progress, bell, notification.

Title: OSC 0, the user's own put aside and back with xterm's stack of titles. Progress: OSC 9;4.
Notification: OSC 9, which more terminals know than OSC 777 or 99; a text that begins with a letter
is no other command of OSC 9 to any of them. Who does not know a sequence shows nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from gputop.occasions import Occasion, Occasions
from gputop.settings import Settings

if TYPE_CHECKING:
    from gputop.feed.snapshot import Snapshot

_SAVE_TITLE, _RESTORE_TITLE = "\x1b[22;0t", "\x1b[23;0t"
_NO_PROGRESS = "\x1b]9;4;0;0\x1b\\"
_NORMAL, _ERROR, _UNKNOWN = 1, 2, 3
"""States of OSC 9;4."""
_BELL = "\a"
_TITLE_CHARACTERS, _NOTICE_CHARACTERS = 80, 200
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")
_HEALTH = {"critical": "✖ ", "failed": "✖ ", "attention": "▲ "}


def can_show() -> bool:
    """Whether the terminal takes such sequences at all."""
    return os.environ.get("TERM", "dumb") not in ("dumb", "linux", "")


class TerminalWords:
    """Keeps title and progress up to date, and tells each occasion once."""

    def __init__(self, write: Callable[[str], None], settings: Settings):
        self._write = write
        self._settings = settings
        self._occasions = Occasions()
        self._last = ""
        self._begun = False

    def show(self, snapshot: Snapshot) -> None:
        """Show where the run stands, if that has changed."""
        if self._settings.on("terminal.title"):
            text = _osc0(title(snapshot)) + progress(snapshot)
            if text != self._last:
                begin = "" if self._begun else _SAVE_TITLE
                self._begun, self._last = True, text
                self._write(begin + text)

    def tell(self, snapshot: Snapshot) -> list[Occasion]:
        """Ring and notify of what is new. Returns it."""
        end = snapshot.verdict.headline if snapshot.ended else ""
        hang = snapshot.hang if not snapshot.ended else ""
        wanted = self._settings.entries("notifications.on")
        fresh = self._occasions.new(snapshot.findings, hang, end)
        new = [occasion_ for occasion_ in fresh if occasion_.event in wanted]
        for occasion in new:
            self._write(self._words(occasion, snapshot.name or snapshot.run_dir.name))
        return new

    def _words(self, occasion: Occasion, name: str) -> str:
        words = ""
        if self._settings.on("notifications.desktop"):
            text = plain(f"gputop: {name}: {occasion.text}", _NOTICE_CHARACTERS)
            words += f"\x1b]9;{text}\x1b\\"
        if self._settings.on("notifications.bell"):
            words += _BELL
        return words

    def use(self, settings: Settings) -> None:
        """Go by other settings from now on."""
        self._settings = settings
        if not settings.on("terminal.title"):
            self.leave()

    def leave(self) -> None:
        """Give title and progress back."""
        self.leave_by(self._write)

    def leave_by(self, write: Callable[[str], object]) -> None:
        """The same, where the way of the screen is closed."""
        if self._begun:
            self._begun, self._last = False, ""
            write(_NO_PROGRESS + _RESTORE_TITLE)


def title(snapshot: Snapshot) -> str:
    """``▲ train.py 30 % 21.0 ms``."""
    from gputop.render import numbers

    run = snapshot.summary
    parts = [_HEALTH.get(snapshot.verdict.health, "") + _script(snapshot)]
    if run.total_steps and run.steps:
        parts.append(numbers.percent(min(1.0, run.steps / run.total_steps)))
    elif run.steps:
        parts.append(f"step {run.steps:,}")
    if snapshot.ended:
        parts.append(run.ending.words)
    elif run.silent_s:
        parts.append(f"no step for {numbers.clock(run.silent_s)}")
    elif numbers.known(run.step_time_p50_ms):
        parts.append(numbers.duration_ms(run.step_time_p50_ms))
    return plain(" ".join(parts), _TITLE_CHARACTERS) + " - gputop"


def _script(snapshot: Snapshot) -> str:
    """The script of the command, else its first word."""
    words = snapshot.summary.command
    scripts = [word for word in words if word.endswith(".py")]
    return os.path.basename((scripts or list(words) or ["gputop"])[0])


def progress(snapshot: Snapshot) -> str:
    """OSC 9;4: how much is done, red where the run is in trouble; unknown where no end is known."""
    run = snapshot.summary
    if snapshot.ended:
        return _NO_PROGRESS
    bad = snapshot.verdict.health in ("critical", "failed")
    if run.total_steps and run.steps:
        done = min(100, 100 * run.steps // run.total_steps)
        return f"\x1b]9;4;{_ERROR if bad else _NORMAL};{done}\x1b\\"
    return f"\x1b]9;4;{_ERROR if bad else _UNKNOWN};{100 if bad else 0}\x1b\\"


def _osc0(text: str) -> str:
    return f"\x1b]0;{text}\x1b\\"


def plain(text: str, characters: int) -> str:
    """Text that gives the terminal no orders, at most so long."""
    text = _CONTROL.sub(" ", text)
    return text if len(text) <= characters else text[: characters - 1] + "…"
