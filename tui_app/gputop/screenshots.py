"""Makes ``screenshots/*.svg`` anew from a record: ``python -m gputop.screenshots [RUN] [FOLDER]``.

Without a run it takes the bundled recording.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from gputop.app.theme import DARK, LIGHT

MOMENT = 0.8
"""Share of the recording that has been played: the run goes on, and all panels are filled."""
SHOTS: dict[str, tuple[tuple[int, int], tuple[str, ...], str]] = {
    "overview-300x80": ((300, 80), (), DARK),
    "overview-200x50": ((200, 50), (), DARK),
    "overview-120x40": ((120, 40), (), DARK),
    "overview-80x24": ((80, 24), (), DARK),
    "overview-60x20": ((60, 20), (), DARK),
    "light-120x40": ((120, 40), (), LIGHT),
    "16-colours-120x40": ((120, 40), (), "ansi-dark"),
    "finding": ((120, 40), ("f", "enter"), DARK),
    "budget": ((120, 40), ("b",), DARK),
    "numerics": ((120, 40), ("n",), DARK),
    "all-ranks": ((120, 40), ("w",), DARK),
    "estimate": ((120, 40), ("v",), DARK),
    "estimate-compared": ((200, 50), ("v", "down", "down", "b", "right", "right", "tab"), DARK),
    "strategy": ((120, 40), ("t",), DARK),
    "what-if": ((120, 40), ("t", "tab", "u"), DARK),
    "catalog": ((120, 40), ("x",), DARK),
    "topology": ((120, 40), ("i", "down", "down", "down"), DARK),
    "zoomed-ranks": ((120, 40), ("r", "z"), DARK),
    "history": ((120, 40), ("2", "z"), DARK),
    "palette": ((120, 40), ("colon", "r", "a", "n", "k"), DARK),
    "help": ((120, 50), ("question_mark",), DARK),
}


def make(run_dir: Path, folder: Path) -> list[Path]:
    """Write every picture and return the paths."""
    from gputop.app.export import svg

    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, (size, keys, theme) in SHOTS.items():
        path = folder / f"{name}.svg"
        path.write_text(svg(run_dir, size, keys=keys, theme=theme, at=MOMENT), encoding="utf-8")
        paths.append(path)
    return paths


def main(words: list[str]) -> int:
    """Entry point."""
    folder = Path(words[1]) if len(words) > 1 else Path("screenshots")
    if words:
        paths = make(Path(words[0]), folder)
    else:
        from gputop.cli.house.demo import unpack

        with tempfile.TemporaryDirectory() as name:
            paths = make(unpack(Path(name)), folder)
    print("\n".join(map(str, paths)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
