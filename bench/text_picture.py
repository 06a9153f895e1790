"""A picture of what a command prints, for the pages of docs/neighbours.

    COMMAND | python bench/text_picture.py "COMMAND as typed" docs/neighbours/NAME.svg [--lines 24]

The text is that of standard input, each line cut at 110 columns; nothing else is changed.
"""

from __future__ import annotations

import argparse
import sys
from html import escape
from pathlib import Path

COLUMNS = 110
_WIDTH, _HEIGHT, _MARGIN = 7.8, 17, 16
_STYLE = (
    "text { font: 13px ui-monospace, Menlo, Consolas, monospace; fill: #d8dee9; white-space: pre } "
    ".typed { fill: #88c0d0 }"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("typed")
    parser.add_argument("picture", type=Path)
    parser.add_argument("--lines", type=int, default=24)
    options = parser.parse_args()
    lines = sys.stdin.read().rstrip().splitlines()
    shown = lines[: options.lines] + (["..."] if len(lines) > options.lines else [])
    options.picture.write_text(picture(options.typed, shown), encoding="utf-8")


def picture(typed: str, lines: list[str]) -> str:
    """The SVG of a command and what it printed."""
    rows = [f"$ {typed}", *lines]
    rows = [row if len(row) <= COLUMNS else row[: COLUMNS - 3] + "..." for row in rows]
    width = round(2 * _MARGIN + _WIDTH * max(map(len, rows)))
    height = 2 * _MARGIN + _HEIGHT * len(rows)
    texts = [
        f'<text x="{_MARGIN}" y="{_MARGIN + _HEIGHT * (number + 0.75):g}">{escape(row)}</text>'
        for number, row in enumerate(rows)
    ]
    texts[0] = texts[0].replace("<text", '<text class="typed"', 1)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}">'
    )
    body = [
        f"<style>{_STYLE}</style>",
        '<rect width="100%" height="100%" rx="6" fill="#242933"/>',
        *texts,
    ]
    return "\n".join([head, *body, "</svg>", ""])


if __name__ == "__main__":
    main()
