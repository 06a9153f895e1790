"""Terminals and locales of ASCII only: every glyph drawn is replaced on its way out."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from gputop.render.rows import char_width

if TYPE_CHECKING:
    from textual.app import App

_POOR = frozenset(["linux", "vt100", "vt102", "vt220", "ansi", "cons25"])
"""Values of TERM whose fonts lack braille and rounded corners."""
_GLYPHS = {
    "━╸╺╼═": "=",
    "─▔": "-",
    "╍": "~",
    "╌": ".",
    "│┃║┊▌▐▏▎▍▋▊▉▕": "|",
    "╭╮╰╯┌┐└┘├┤┬┴┼╔╗╚╝": "+",
    "█▇": "#",
    "▓▆": "%",
    "▒▅": "=",
    "▄▀": "-",
    "░": ":",
    "▃": ".",
    "▂▁": "_",
    "●■◉": "*",
    "○": "o",
    "▲": "^",
    "▼": "v",
    "◆⚠": "!",
    "✖": "X",
    "✓": "+",
    "·∙": ".",
    "–—−": "-",
    "…": "~",
    "→›▶▸": ">",
    "←‹◀": "<",
    "↑▴": "^",
    "↓▾": "v",
    "‖": "|",
    "≈": "~",
    "×": "x",
    "°": "o",
    "µ": "u",
    "⇧": "^",
}
_PAIRS = {" → ": " ->", "‖  ": "|| ", " °C": " C ", "…   ": "... "}
"""What takes more cells than its glyph where blanks beside it have room; the rest is by glyph."""
_TABLE = {ord(glyph): plain for glyphs, plain in _GLYPHS.items() for glyph in glyphs}
_TABLE |= {ord(raised): str(n) for n, raised in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")}
_DOTS = " .:-=+*%#"


def needed() -> bool:
    """Whether the user asks for ASCII, or locale or terminal have no more."""
    requested = os.environ.get("GPUTOP_ASCII")
    if requested is not None:
        return requested not in ("", "0")
    encoding = (getattr(sys.__stdout__, "encoding", None) or "").lower().replace("-", "")
    return not encoding.startswith("utf") or os.environ.get("TERM", "") in _POOR


def plain(text: str) -> str:
    """The text in ASCII, as many cells: shapes by their looks, other letters as ``?``."""
    if text.isascii():
        return text
    for glyphs, spelled in _PAIRS.items():
        text = text.replace(glyphs, spelled)
    return "".join(char if char < "\x80" else _plain_char(char) for char in text)


def _plain_char(char: str) -> str:
    if 0x2800 <= ord(char) < 0x2900:
        return _DOTS[bin(ord(char) - 0x2800).count("1")]
    return _TABLE.get(ord(char)) or "?" * char_width(char)


def install(app: App[Any]) -> None:
    """Let the app's driver write nothing but ASCII from now on."""
    driver = app._driver
    if driver is None:
        return
    write = driver.write
    driver.write = lambda data: write(plain(data))  # type: ignore[method-assign]
