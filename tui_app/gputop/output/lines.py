"""Lines of output out of a byte stream, cheap at thousands of lines a second.

A line is kept as the raw text that was written to it, control characters included; ``ansi.resolve``
turns it into cells when it is drawn. Only movements between lines (newline, cursor up and down) are
interpreted on arrival.
"""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass, field

from gputop.output.ansi import column_of, resolve_text

MAX_LINES = 20_000
MAX_RAW = 8_192
"""A line that was rewritten for longer than this is replaced by what it shows."""
_REACH = 200
"""Lines up that a progress display may reach."""
_VERTICAL = re.compile(r"\x1b\[(\d*)([ABEF])|\n")
_INCOMPLETE = re.compile(r"\x1b(\[[0-9;?]*)?$")


@dataclass
class LineBuffer:
    """Lines of one or several streams, in the order in which they began."""

    lines: list[str] = field(default_factory=list)
    dropped: int = 0
    """Lines that fell off the front; ``dropped + index`` names a line for good."""

    def append(self, text: str = "") -> int:
        """Begin a line and return its lasting name."""
        self.lines.append(text)
        if len(self.lines) > MAX_LINES * 5 // 4:
            excess = len(self.lines) - MAX_LINES
            del self.lines[:excess]
            self.dropped += excess
        return self.dropped + len(self.lines) - 1

    def extend(self, texts: list[str]) -> int:
        """Append whole lines and return the lasting name of the last one."""
        texts = texts[-MAX_LINES:]
        self.lines += texts[:-1]
        return self.append(texts[-1])

    def write(self, name: int, text: str) -> None:
        """Add raw text to a line, unless it is gone."""
        index = name - self.dropped
        if not 0 <= index < len(self.lines):
            return
        raw = self.lines[index] + text
        if len(raw) > MAX_RAW and ("\r" in raw or "\b" in raw):
            raw = resolve_text(raw)
        self.lines[index] = raw


class OutputWriter:
    """One writer into a buffer: stdout or stderr of one host. It keeps its own cursor."""

    def __init__(self, buffer: LineBuffer, tint: str = ""):
        self.buffer = buffer
        self.tint = tint
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pending = ""
        self._own: list[int] = []
        self._row = -1

    def feed(self, data: bytes) -> None:
        """Take bytes as they were written."""
        text = self._pending + self._decoder.decode(data).replace("\r\n", "\n")
        self._pending = ""
        if text.endswith("\r"):
            text, self._pending = text[:-1], "\r"
        elif match := _INCOMPLETE.search(text[-32:]):
            self._pending = match.group()
            text = text[: len(text) - len(self._pending)]
        if ("\x1b[" in text and _moves_up(text)) or self._row != len(self._own) - 1:
            self._feed_moving(text)
        else:
            self._feed_plain(text)

    def _feed_plain(self, text: str) -> None:
        first, *further = text.split("\n")
        if first:
            self._write(first)
        if further:
            if not self._own:
                self._open()
            self._remember(self.buffer.extend([self.tint + line for line in further]), len(further))

    def _remember(self, last: int, lines: int) -> None:
        self._own += range(max(last - lines + 1, last - _REACH), last + 1)
        del self._own[:-_REACH]
        self._row = len(self._own) - 1

    def _feed_moving(self, text: str) -> None:
        start = 0
        for match in _VERTICAL.finditer(text):
            self._write(text[start : match.start()])
            start = match.end()
            if match.group() == "\n":
                self._down(1)
                self._write("\r")
            else:
                self._move(match)
        self._write(text[start:])

    def _move(self, match: re.Match[str]) -> None:
        lines, command = int(match.group(1) or 1), match.group(2)
        if command in "EF":
            column = 0
        else:
            column = self._column()
        if command in "AF":
            self._row = max(0, self._row - lines)
        else:
            self._down(min(lines, _REACH))
        self._write(f"\x1b[{column + 1}G")

    def _down(self, lines: int) -> None:
        for _ in range(lines):
            if self._row >= len(self._own) - 1:
                self._open()
            else:
                self._row += 1

    def _column(self) -> int:
        if self._row < 0:
            return 0
        index = self._own[self._row] - self.buffer.dropped
        if 0 <= index < len(self.buffer.lines):
            return column_of(self.buffer.lines[index])
        return 0

    def _open(self) -> None:
        self._remember(self.buffer.append(self.tint), 1)

    def _write(self, text: str) -> None:
        if not text:
            return
        if self._row < 0:
            self._open()
        self.buffer.write(self._own[self._row], text)


def _moves_up(text: str) -> bool:
    if "\x1b[" in text:
        return any(match.group() != "\n" for match in _VERTICAL.finditer(text))
    return False
