"""A launch command with its files: to read, copy and save."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content

from gputop.screens.dialog import TextDialog, Words


class LaunchDialog(TextDialog):
    """``files`` by name, what is to be typed among them; ``s`` writes them into a folder."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("s", "save", show=False)]

    def __init__(self, launcher: str, body: str, notes: str, files: dict[str, str]):
        words = Words(Content(body + notes), body)
        super().__init__(launcher, lambda size: words)
        self._launcher = launcher
        self._files = files

    def on_mount(self) -> None:
        self.query_one(".box").border_subtitle = "y copy · s save · esc back"

    def action_save(self) -> None:
        try:
            folder = save(self._files, Path.cwd(), f"gputop-{self._launcher}")
        except OSError as error:
            self.notify(f"cannot write here: {error.strerror}", severity="error")
        else:
            self.notify(f"{folder}/: {', '.join(self._files)}", title="written")


def save(files: dict[str, str], parent: Path, name: str) -> Path:
    """Write the files into a new folder of that name, or of the name with a number, and return it.

    Raises:
        OSError: it cannot be written.
    """
    number = 1
    while (folder := parent / (name if number == 1 else f"{name}-{number}")).exists():
        number += 1
    folder.mkdir()
    for file, text in files.items():
        (folder / file).write_text(text, encoding="utf-8")
    return folder
