"""One raw line to the cells that a terminal would show: ``\\r``, ``\\b``, tabs, erasing, columns
and colours (SGR).
"""

from __future__ import annotations

import re
from typing import NamedTuple

_TOKEN = re.compile(
    r"\x1b\[([0-9;:?]*)([@-~])"
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"
    r"|\x1b[@-_]?|[\r\b\t]|[^\x1b\r\b\t]+"
)
_CONTROL = dict.fromkeys(
    (
        *range(32),
        *range(127, 160),
        0x061C,
        *range(0x200B, 0x2010),
        *range(0x2028, 0x202F),
        *range(0x2060, 0x2070),
    )
    + (0xFEFF, *range(0xFFF9, 0xFFFC), *range(0xD800, 0xE000), *range(0xE0000, 0xE0080))
)
"""Characters that a terminal would obey, or that hide or turn others; emoji joiners too."""
_NAMES = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
MAX_COLUMNS = 4_000


class Look(NamedTuple):
    """Colour and weight of a run of cells; colours are Rich's names, None: the default."""

    front: str | None = None
    back: str | None = None
    bold: bool = False
    dim: bool = False
    italic: bool = False
    underline: bool = False
    reverse: bool = False


PLAIN = Look()


def resolve(raw: str) -> list[tuple[str, Look]]:
    """Runs of text and look."""
    if "\x1b" not in raw and "\r" not in raw and "\b" not in raw and "\t" not in raw:
        if raw:
            return [(raw.translate(_CONTROL), PLAIN)]
        return []
    runs: list[tuple[str, Look]] = []
    for char, look in _cells(raw)[0]:
        if runs and runs[-1][1] == look:
            runs[-1] = (runs[-1][0] + char, look)
        else:
            runs.append((char, look))
    return runs


def resolve_text(raw: str) -> str:
    """The visible text of a raw line."""
    return "".join(text for text, _ in resolve(raw))


def column_of(raw: str) -> int:
    """Column of the cursor after the line was written."""
    return _cells(raw)[1]


def _cells(raw: str) -> tuple[list[tuple[str, Look]], int]:
    cells: list[tuple[str, Look]] = []
    column, look = 0, PLAIN
    for match in _TOKEN.finditer(raw):
        text = match.group()
        if text == "\r":
            column = 0
        elif text == "\b":
            column = max(0, column - 1)
        elif text == "\t":
            column = min(MAX_COLUMNS, column // 8 * 8 + 8)
        elif text[0] != "\x1b":
            column = _put(cells, column, text.translate(_CONTROL), look)
        elif match.group(2) == "m":
            look = _sgr(match.group(1), look)
        elif match.group(2):
            column = _move(cells, column, match.group(1), match.group(2))
    return cells, column


def _put(cells: list[tuple[str, Look]], column: int, text: str, look: Look) -> int:
    text = text[: max(0, MAX_COLUMNS - column)]
    if column > len(cells):
        cells += [(" ", PLAIN)] * (column - len(cells))
    cells[column : column + len(text)] = [(char, look) for char in text]
    return column + len(text)


def _move(cells: list[tuple[str, Look]], column: int, numbers: str, command: str) -> int:
    """Cursor movement within the line and erasing; anything else has no effect on one line."""
    n = 0
    if numbers.isdigit():
        n = int(numbers)
    if command == "K":
        if n == 0:
            del cells[column:]
        elif n == 1:
            cells[:column] = [(" ", PLAIN)] * min(column, len(cells))
        else:
            cells.clear()
    elif command == "G":
        return min(max(n, 1) - 1, MAX_COLUMNS)
    elif command == "C":
        return min(column + max(n, 1), MAX_COLUMNS)
    elif command == "D":
        return max(0, column - max(n, 1))
    return column


def _sgr(numbers: str, look: Look) -> Look:
    codes = []
    for c in numbers.replace(":", ";").split(";"):
        codes.append(int(c) if c.isdigit() else 0)
    while codes:
        code = codes.pop(0)
        if code == 0:
            look = PLAIN
        elif code in _FLAGS:
            look = look._replace(**_FLAGS[code])
        elif code in (38, 48):
            colour = _extended(codes)
            if code == 38:
                look = look._replace(front=colour)
            else:
                look = look._replace(back=colour)
        elif 30 <= code <= 37 or 90 <= code <= 97:
            look = look._replace(front=_named(code))
        elif 40 <= code <= 47 or 100 <= code <= 107:
            look = look._replace(back=_named(code - 10))
        elif code == 39:
            look = look._replace(front=None)
        elif code == 49:
            look = look._replace(back=None)
    return look


_FLAGS: dict[int, dict[str, bool]] = {
    1: {"bold": True},
    2: {"dim": True},
    3: {"italic": True},
    4: {"underline": True},
    7: {"reverse": True},
    22: {"bold": False, "dim": False},
    23: {"italic": False},
    24: {"underline": False},
    27: {"reverse": False},
}


def _named(code: int) -> str:
    if code < 90:
        return _NAMES[code - 30]
    return "bright_" + _NAMES[code - 90]


def _extended(codes: list[int]) -> str | None:
    mode = 0
    if codes:
        mode = codes.pop(0)
    if mode == 5 and codes:
        return f"color({min(codes.pop(0), 255)})"
    if mode == 2 and len(codes) >= 3:
        red, green, blue = (min(codes.pop(0), 255) for _ in range(3))
        return f"#{red:02x}{green:02x}{blue:02x}"
    codes.clear()
    return None
