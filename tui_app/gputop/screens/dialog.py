"""Dialogs: a calm box in the middle, keys or arrows to choose, Esc to leave."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Generic, NamedTuple, TypeVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.events import Key
from textual.screen import ModalScreen
from textual.widgets import Static

from gputop.screens.typed import Typed

Result = TypeVar("Result")
_TEXT_WIDTH = 100
AROUND = 8
"""Columns that a dialog's border, padding and scroll bar take, with one before the bar."""

CSS = """
{name} {{ align: center middle; background: $background 60%; }}
{name} > .box {{
    width: {width}; max-width: 96%; height: auto; max-height: 92%;
    background: $surface; border: round $role-rule;
    border-title-color: $role-accent; border-title-style: bold;
    border-subtitle-color: $role-muted; padding: 1 2;
    scrollbar-size-vertical: 1; scrollbar-color: $role-rule; scrollbar-color-hover: $role-muted;
    scrollbar-color-active: $role-accent; scrollbar-background: $surface;
    scrollbar-background-hover: $surface; scrollbar-background-active: $surface;
}}
{name}.-narrow > .box {{ width: 100%; max-width: 100%; }}
{name}:ansi {{ background: ansi_default; }}
"""
"""On a narrow terminal nothing of the screen behind stays at the edges; where it cannot be dimmed,
it goes.
"""
NARROW_BELOW = 100
"""Columns from which on a dialog leaves some of the screen at either side."""
_WIDTHS = [(0, "-narrow"), (NARROW_BELOW, "-roomy")]


class Dialog(Typed, ModalScreen[Result], Generic[Result]):
    """A box above a screen, which takes the whole width where there is little."""

    HORIZONTAL_BREAKPOINTS = _WIDTHS


@dataclass(frozen=True, slots=True)
class DialogChoice(Generic[Result]):
    """One answer."""

    key: str
    label: str
    note: str
    value: Result


class ChoiceDialog(Dialog[Result | None], Generic[Result]):
    """A question with a few answers; None when it is cancelled."""

    DEFAULT_CSS = CSS.format(name="ChoiceDialog", width=64)
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "cancel", show=False),
        Binding("up,k,shift+tab", "move(-1)", show=False),
        Binding("down,j,tab", "move(1)", show=False),
        Binding("enter", "take", show=False),
    ]

    def __init__(
        self,
        title: str,
        question: str,
        choices: list[DialogChoice[Result]],
        enter: str = "choose",
        escape: str = "cancel",
    ):
        """``enter`` and ``escape``: what these keys do, as the border says it."""
        super().__init__()
        self._keys = f"enter {enter} · esc {escape}"
        self._title = title
        self._question = question
        self._choices = choices
        self._chosen = 0

    def compose(self) -> ComposeResult:
        with Vertical(classes="box") as box:
            box.border_title = self._title
            box.border_subtitle = self._keys
            yield Static(self._question, markup=False)
            yield Static("", id="choices", markup=False)

    def on_mount(self) -> None:
        self._show()

    def action_move(self, step: int) -> None:
        self._chosen = (self._chosen + step) % len(self._choices)
        self._show()

    def action_take(self) -> None:
        self.dismiss(self._choices[self._chosen].value)

    def action_cancel(self) -> None:
        self.dismiss(None)

    def on_key(self, event: Key) -> None:
        for choice in self._choices:
            if event.key == choice.key:
                event.stop()
                self.dismiss(choice.value)
                return

    def _show(self) -> None:
        variables = self.app.theme_variables
        accent, muted = variables["role-accent"], variables["role-muted"]
        width = max(len(choice.label) for choice in self._choices) + 2
        lines = []
        for index, choice in enumerate(self._choices):
            chosen = index == self._chosen
            lines.append(
                Content.assemble(
                    ("› " if chosen else "  ", accent),
                    (choice.key.removeprefix("ctrl+") + "  ", f"bold {accent}"),
                    (choice.label.ljust(width), "bold" if chosen else ""),
                    (choice.note, muted),
                )
            )
        self.query_one("#choices", Static).update(Content("\n").join([Content(""), *lines]))


def text_columns(columns: int, width: int = _TEXT_WIDTH) -> int:
    """Columns of text in a dialog of ``width`` in a terminal of ``columns``, beside its border,
    padding and scroll bar.
    """
    room = columns if columns < NARROW_BELOW else columns * 96 // 100
    return min(width, room) - AROUND


class Words(NamedTuple):
    """What a dialog says, as it is drawn and as plain text for the clipboard, if anything."""

    body: Content
    plain: str = ""


class TextDialog(Dialog[None]):
    """Something to read; ``y`` puts its plain text on the clipboard."""

    DEFAULT_CSS = CSS.format(name="TextDialog", width=_TEXT_WIDTH)
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter,question_mark", "leave", show=False),
        Binding("y,c", "copy", show=False),
        Binding("up,k", "scroll(-1)", show=False),
        Binding("down,j", "scroll(1)", show=False),
        Binding("pageup", "scroll(-10)", show=False),
        Binding("pagedown,space", "scroll(10)", show=False),
    ]

    def __init__(self, title: str, words_at: Callable[[tuple[int, int]], Words]):
        """``words_at`` writes for a terminal of so many columns and rows, anew at another size."""
        super().__init__()
        self._title = title
        self._words_at = words_at
        self._words = Words(Content(""))
        self._written_for: tuple[int, int] | None = None

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="box", can_focus=False) as box:
            box.border_title = self._title
            self._write()
            if self._words.plain:
                box.border_subtitle = "y copy · esc back"
            else:
                box.border_subtitle = "esc back"
            yield Static(self._words.body, markup=False)

    def on_resize(self) -> None:
        if self._written_for != self.app.size:  # the first one comes with the opening
            self.write_again()

    def write_again(self) -> None:
        """What it says has changed, or the room for it."""
        self._write()
        self.query_one(Static).update(self._words.body)

    def _write(self) -> None:
        self._written_for = self.app.size
        self._words = self._words_at(self._written_for)

    def action_leave(self) -> None:
        self.dismiss(None)

    def action_copy(self) -> None:
        if self._words.plain:
            self.app.copy_to_clipboard(self._words.plain)
            self.notify("copied")

    def action_scroll(self, step: int) -> None:
        self.query_one(".box").scroll_relative(y=step, animate=False)
