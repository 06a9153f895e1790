"""Writes what is seen into the working directory."""

from __future__ import annotations

import re
from pathlib import Path

from gputop.feed.snapshot import Snapshot
from gputop.screens.dialog import DialogChoice

CHOICES = [
    DialogChoice("s", "SVG", "a picture of the screen", "svg"),
    DialogChoice("m", "Markdown", "for an issue or a pull request", "md"),
    DialogChoice("j", "JSON", "all figures, units in the names", "json"),
    DialogChoice("c", "CSV", "the phases of each rank as a table", "csv"),
]


def write(kind: str, snapshot: Snapshot, picture: str, folder: Path) -> Path:
    """Write one file and return its path; an existing one is never overwritten.

    Raises:
        OSError: the folder cannot be written.
    """
    from gputop.render import snapshot_text

    texts = {
        "md": snapshot_text.markdown,
        "json": snapshot_text.json_text,
        "csv": snapshot_text.csv_text,
    }
    text = picture if kind == "svg" else texts[kind](snapshot)
    name = re.sub(r"[^\w.-]+", "-", snapshot.run_dir.name)[:100] or "run"
    stem = f"gputop-{name}-step{snapshot.summary.steps}"
    return write_new(folder, stem, kind, text)


def write_new(folder: Path, stem: str, kind: str, text: str) -> Path:
    """Write a file of that name, or of the name with a number where it is there already, and return
    its path.

    Raises:
        OSError: the folder cannot be written.
    """
    for attempt in range(1, 1000):
        path = folder / (f"{stem}.{kind}" if attempt == 1 else f"{stem}-{attempt}.{kind}")
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            continue
        return path
    raise FileExistsError(17, "a thousand files of this name are here already", str(folder))
