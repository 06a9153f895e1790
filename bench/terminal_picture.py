"""A picture of another program's screen in its colours, for the pages of docs/neighbours.

tmux capture-pane -e -p | python bench/terminal_picture.py "wandb leet" docs/neighbours/wandb.svg
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

from gputop.app.cells import row_of
from gputop.render.picture import picture

BACKGROUND = "#000000"


def main() -> None:
    """Read the screen from standard input and write its picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("title")
    parser.add_argument("picture", type=Path)
    options = parser.parse_args()
    screen = Text.from_ansi(sys.stdin.read().rstrip())
    columns = max(line.cell_len for line in screen.split("\n"))
    console = Console(width=columns, color_system="truecolor", force_terminal=True)
    rows = [row_of(segments) for segments in console.render_lines(screen)]
    options.picture.write_text(picture(rows, columns, BACKGROUND, options.title), encoding="utf-8")


if __name__ == "__main__":
    main()
