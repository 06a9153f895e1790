"""The terminal's background, asked with OSC 11 while the app is imported, at no cost."""

from __future__ import annotations

import contextlib
import os
import re
import select
import sys
import time

from gputop import settings

_QUESTION = b"\x1b]11;?\x1b\\\x1b[c"
"""The colour, then the terminal's kind, which all answer, so nobody waits for a colour."""
_COLOUR = re.compile(rb"\x1b\]11;rgba?:([0-9a-fA-F]+)/([0-9a-fA-F]+)/([0-9a-fA-F]+)")
_END = re.compile(rb"\x1b\[\?[\d;]*c")
_ANSWERS = re.compile(rb"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b\[\?[\d;]*c")
LIMIT_S = 0.15
FAR_LIMIT_S = 0.5
"""How long after the question the answer may come, on this machine and over ssh."""


class BackgroundAsked:
    """The question, put to the terminal of stdin; ``answer`` takes the terminal back as it was."""

    def __init__(self) -> None:
        import termios
        import tty

        self._fd = sys.stdin.fileno()
        self._saved = termios.tcgetattr(self._fd)
        self.typed = b""
        """What was typed meanwhile."""
        tty.setcbreak(self._fd)
        self._asked = time.monotonic()
        os.write(sys.stdout.fileno(), _QUESTION)

    def answer(self) -> bool | None:
        """Whether the background is light; None where the terminal does not tell in time."""
        import termios

        limit = FAR_LIMIT_S if os.environ.get("SSH_CONNECTION") else LIMIT_S
        data, until = b"", self._asked + limit
        try:
            while not _END.search(data):
                seconds_left = max(until - time.monotonic(), 0)
                if not select.select([self._fd], [], [], seconds_left)[0]:
                    break
                data += os.read(self._fd, 4096)
        finally:
            termios.tcsetattr(self._fd, termios.TCSANOW, self._saved)
        self.typed = _ANSWERS.sub(b"", data)
        return is_light(data)


def is_light(data: bytes) -> bool | None:
    """The answer read: by the luminance of ITU-R BT.709; None where there is no colour in it."""
    match = _COLOUR.search(data)
    if not match:
        return None
    red, green, blue = (int(part, 16) / (16 ** len(part) - 1) for part in match.groups())
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.5


def ask() -> BackgroundAsked | None:
    """Put the question; None where the answer is known, or keys are already waiting to be read."""
    variables = ("COLORFGBG", "NO_COLOR")
    if any(name in os.environ for name in variables) or os.environ.get("TERM", "dumb") == "linux":
        return None
    if settings.load().text("theme") != "auto":
        return None
    with contextlib.suppress(OSError, ValueError):
        if not select.select([sys.stdin], [], [], 0)[0]:
            return BackgroundAsked()
    return None
