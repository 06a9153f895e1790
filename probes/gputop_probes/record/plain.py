"""Others' text made fit to be shown: what a terminal would obey is spelt out."""

from __future__ import annotations

import re

_ORDERS = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 without tab and line feed, DEL, C1
    # zero-width, bidirectional, line separators
    "\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e007f\ud800-\udfff"  # tags, halves of pairs (no encoding takes them)
)
_IN_TEXT = re.compile(f"[{_ORDERS}]")
_IN_LINE = re.compile(f"[{_ORDERS}\t\n]")
_SHORT = {"\t": "\\t", "\n": "\\n", "\r": "\\r"}


def plain_text(text: str) -> str:
    """Text of several lines in which every character but line feed and tab is shown, not obeyed:
    ``\\x1b``.
    """
    return _IN_TEXT.sub(_spelt, text)


def plain_line(text: str) -> str:
    """The same in one line: tabs and line ends are spelt out too."""
    return _IN_LINE.sub(_spelt, text)


def blanked(text: str) -> str:
    """The same in cells of a screen: each such character takes one cell, and none says anything."""
    return text if text.isprintable() else _IN_LINE.sub("\ufffd", text)


def _spelt(found: re.Match[str]) -> str:
    character = found.group()
    number = ord(character)
    if character in _SHORT:
        return _SHORT[character]
    if number < 0x100:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
