"""Rows of styled text, before any widget or terminal.

A row is a list of ``(text, style)`` pairs. ``style`` names a colour role; ``"front/ground"`` means
the first as foreground upon the second as background; ``"bold name"`` adds weight; ``""`` is the
default.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from functools import lru_cache

from gputop_analysis.text import BREAKS

Row = list[tuple[str, str]]


def char_width(char: str) -> int:
    """Terminal cells of one character: 0, 1 or 2."""
    if char < "\u0300" or "\u2500" <= char < "\u25f0" or "\u2800" <= char < "\u2900":
        return 1
    if unicodedata.combining(char):
        return 0
    if unicodedata.east_asian_width(char) in "WF":
        return 2
    return 1


def text_width(text: str) -> int:
    """Terminal cells of a text."""
    if text.isascii():
        return len(text)
    return _width_of(text)


@lru_cache(maxsize=4096)
def _width_of(text: str) -> int:
    """Remembered: from one picture to the next most rules, bars and charts stay."""
    return sum(map(char_width, text))


def row_width(row: Row) -> int:
    """Terminal cells of a row."""
    return sum(text_width(text) for text, _ in row)


def row_text(row: Row) -> str:
    """The row without its styles."""
    return "".join(text for text, _ in row)


def cut(text: str, width: int) -> str:
    """The longest prefix that fits into ``width`` cells."""
    if text_width(text) <= width:
        return text
    used = 0
    for index, char in enumerate(text):
        used += char_width(char)
        if used > width:
            return text[:index]
    return text


def shorten(text: str, width: int) -> str:
    """``text`` in at most ``width`` cells: ends at a word and an ellipsis where it is too long, not
    at a figure whose unit is left out.
    """
    if text_width(text) <= width:
        return text
    if width <= 1:
        return cut(text, max(width, 0))
    head = cut(text, width - 1)
    ends = [match.start() for match in BREAKS.finditer(text[: len(head) + 10])]
    if len(head) not in ends:
        space = max((end for end in ends if end < len(head)), default=-1)
        if space > width // 2:
            head = head[:space]
    return head.rstrip(" ,;:") + "…"


def shorten_middle(text: str, width: int) -> str:
    """``text`` with its middle left out; for commands and paths, whose ends matter most."""
    if text_width(text) <= width:
        return text
    if width < 8:
        return shorten(text, width)
    head = width // 3
    tail = width - head - 1
    return cut(text, head) + "…" + text[len(text) - tail :]


def left(text: str, width: int) -> str:
    """Left-aligned in exactly ``width`` cells."""
    text = shorten(text, width)
    return text + " " * (width - text_width(text))


def right(text: str, width: int) -> str:
    """Right-aligned in ``width`` cells; a number that does not fit is ``#``, never wrong."""
    cells = text_width(text)
    if cells > width:
        return "#" * width
    return " " * (width - cells) + text


def clip(row: Row, width: int) -> Row:
    """The row in at most ``width`` cells."""
    result: Row = []
    for text, style in row:
        if width <= 0:
            break
        text = cut(text, width)
        width -= text_width(text)
        result.append((text, style))
    return result


def whole(parts: Sequence[Row], width: int) -> Row:
    """The parts one after the other up to the first that does not fit: half a figure is wrong."""
    row: Row = []
    for part in parts:
        if row_width(row) + row_width(part) > width:
            break
        row += part
    return row


def fill(row: Row, width: int) -> Row:
    """The row in exactly ``width`` cells."""
    row = clip(row, width)
    missing = width - row_width(row)
    if missing:
        return row + [(" " * missing, "")]
    return row


def spread(start: Row, end: Row, width: int) -> Row:
    """``start`` at the left edge, ``end`` at the right; ``end`` gives way if both do not fit."""
    gap = width - row_width(start) - row_width(end)
    if gap < 1:
        return fill(start, width)
    return [*start, (" " * gap, ""), *end]


def wrap(text: str, width: int) -> list[str]:
    """Lines of at most ``width`` cells, broken at spaces, but not between a figure and its unit;
    in a path or code that is longer, behind a mark of it.
    """
    width = max(width, 1)  # a pane may be laid out without any room for a moment
    lines: list[str] = []
    for paragraph in text.splitlines() or [""]:
        line = ""
        for word in BREAKS.split(paragraph):
            if line:
                trial = f"{line} {word}"
            else:
                trial = word
            if text_width(trial) <= width:
                line = trial
                continue
            if line:
                lines.append(line)
            while text_width(word) > width:
                head = _head(word, width)
                lines.append(head)
                word = word[len(head) :]
            line = word
        lines.append(line)
    return lines


def hanging(text: str, width: int, indent: int = 2) -> list[str]:
    """The lines of an entry, all but the first below its words and not below its bullet."""
    first, *further = wrap(text[indent:], width - indent)
    return [text[:indent] + first, *(" " * indent + line for line in further)]


def _head(word: str, width: int) -> str:
    """The part of code or a path that a line of ``width`` cells holds, to a mark if one is near."""
    head = cut(word, width)
    end = 1 + max(head.rfind(mark) for mark in "(.,/")
    return head[:end] if end > width // 3 else head


def say(text: str, width: int) -> list[Row]:
    """A sentence in muted colour, wrapped at words: a panel's words with nothing to draw."""
    return [[(line, "muted")] for line in wrap(text, width)]


def beside(first: list[Row], first_width: int, second: list[Row], gap: int = 2) -> list[Row]:
    """Two blocks of rows side by side."""
    height = max(len(first), len(second))
    lefts = first + [[] for _ in range(height - len(first))]
    rights = second + [[] for _ in range(height - len(second))]
    joined = []
    for a, b in zip(lefts, rights, strict=True):
        joined.append([*fill(a, first_width), (" " * gap, ""), *b])
    return joined
