"""Search a model: typing filters the catalog; a path or a cached Hugging Face name works."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input, Static

from gputop.screens.dialog import CSS, Dialog

AROUND = 10
"""Rows that the dialog's margin, frame, padding and the line for typing take."""


def matching(typed: str) -> list[tuple[str, str]]:
    """(name, description) of models whose name has all typed words, in the catalog's order."""
    from gputop_analysis import catalog

    words = typed.lower().replace("/", " ").split()
    matches = []
    for shape in catalog.models():
        name = f"{shape.name} {catalog.hf_id(shape)}".lower()
        if all(word in name for word in words):
            if shape.params >= 1e9:
                size = f"{shape.params / 1e9:.1f} B"
            else:
                size = f"{shape.params / 1e6:.0f} M"
            matches.append((shape.name, f"{size:>8}  {shape.family}"))
    return matches


class ModelDialog(Dialog[str | None]):
    """Returns a name or a path, or None when it is cancelled."""

    DEFAULT_CSS = (
        CSS.format(name="ModelDialog", width=72)
        + """
    ModelDialog Input, ModelDialog Input:focus {
        border: none; border-bottom: solid $role-rule; padding: 0; height: 2; background: $surface;
    }
    """
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", show=False),
        Binding("up", "move(-1)", show=False),
        Binding("down", "move(1)", show=False),
        Binding("pageup", "move(-10)", show=False),
        Binding("pagedown", "move(10)", show=False),
    ]

    def __init__(self, present: str):
        super().__init__()
        self._present = present
        self._found = matching("")
        self._chosen = next((i for i, (name, _) in enumerate(self._found) if name == present), 0)

    def compose(self) -> ComposeResult:
        with Vertical(classes="box") as box:
            box.border_subtitle = "type to search · ↑↓ enter · esc back"
            yield Input(
                placeholder="name, Hugging Face name, or path of a configuration",
                select_on_focus=False,
            )
            yield Static("", id="found", markup=False)

    def on_mount(self) -> None:
        self._show()

    def on_resize(self) -> None:
        self._show()

    def on_input_changed(self, event: Input.Changed) -> None:
        if event.value or self._found != matching(""):
            self._found, self._chosen = matching(event.value), 0
        self._show()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if self._found:
            self.dismiss(self._found[self._chosen][0])
        elif event.value.strip():
            self.dismiss(event.value.strip())

    def action_move(self, step: int) -> None:
        self._chosen = min(max(self._chosen + step, 0), max(len(self._found) - 1, 0))
        self._show()

    def _show(self) -> None:
        variables = self.app.theme_variables
        accent, muted = variables["role-accent"], variables["role-muted"]
        here_style = "reverse" if self.app.no_color else f"on {variables['role-cursor']}"
        count = len(self._found)
        rows = min(max(self.app.size.height * 92 // 100 - AROUND, 3), len(matching("")))
        first = max(0, min(self._chosen - rows // 2, count - rows))
        last = min(first + rows, count)
        title = f"Model {first + 1}–{last} of {count}" if count > rows else "Model"
        self.query_one(".box").border_title = title
        lines = []
        for index, (name, text) in enumerate(self._found[first:last], first):
            here = index == self._chosen
            line = Content.assemble(
                ("› " if here else "  ", accent),
                (f"{name:<34}", "bold" if here else ""),
                (text, "" if here else muted),
            )
            lines.append(line.stylize(here_style) if here else line)
        if not lines:
            lines = [
                Content.styled(
                    "No model of the catalog is called so; enter takes it as a path "
                    "or a cached name.",
                    muted,
                )
            ]
        lines += [Content("")] * (rows - len(lines))
        self.query_one("#found", Static).update(Content("\n").join(lines))
