"""The settings as a dialog: what is changed holds at once and is written into the user's file."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from gputop import settings
from gputop.panels import panel
from gputop.screens.dialog import CSS, Dialog
from gputop.settings import SETTINGS, Setting, Settings, SettingsError, Value

GROUP = 15
LABEL = 22
VALUE = 10


class SettingRow(NamedTuple):
    """A row: a setting, or one entry of a setting that is a list."""

    setting: Setting
    entry: str = ""

    def value(self, current: Settings) -> str:
        """What it says now."""
        value = current.values[self.setting.key]
        if isinstance(value, tuple):
            if (self.entry in value) != self.is_left_out:
                return "yes"
            return "no"
        if isinstance(value, bool):
            return "yes" if value else "no"
        return value

    @property
    def is_left_out(self) -> bool:
        """Whether the entries of the list are those that are not wanted."""
        return self.setting.key == "panels.hidden"

    @property
    def label(self) -> str:
        """Its name, beside its group's."""
        spec = panel(self.entry)
        if self.is_left_out and spec:
            return spec.title
        return self.entry or self.setting.key.rpartition(".")[2]

    @property
    def group(self) -> str:
        """The table of the file in which it stands."""
        return self.setting.key.rpartition(".")[0].capitalize()

    def next(self, current: Settings, step: int) -> Value:
        """The value after a change."""
        value = current.values[self.setting.key]
        if isinstance(value, bool):
            return not value
        if isinstance(value, str):
            choices = self.setting.choices
            if value in choices:
                here = choices.index(value)
            elif step > 0:
                here = -1
            else:
                here = 0
            return choices[(here + step) % len(choices)]
        if self.entry in value:
            return tuple(entry for entry in value if entry != self.entry)
        return tuple(entry for entry in self.setting.choices if entry in (*value, self.entry))


def _rows(setting: Setting) -> list[SettingRow]:
    """A line a choice where several may hold at once, else one."""
    if isinstance(setting.default, tuple):
        return [SettingRow(setting, choice) for choice in setting.choices]
    return [SettingRow(setting, "")]


LINES = [row for setting in SETTINGS if setting.shown for row in _rows(setting)]


class SettingsDialog(Dialog[None]):
    """One row a setting; Space or the arrows change it."""

    DEFAULT_CSS = CSS.format(name="SettingsDialog", width=76)
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,comma", "leave", show=False),
        Binding("up,k,shift+tab", "move(-1)", show=False),
        Binding("down,j,tab", "move(1)", show=False),
        Binding("space,enter,right,l", "change(1)", show=False),
        Binding("left,h", "change(-1)", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._chosen_settings = settings.load()
        self._at = 0

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="box", can_focus=False) as box:
            box.border_title = "Settings"
            box.border_subtitle = "space changes · esc back"
            yield Static("", id="lines", markup=False)

    def on_mount(self) -> None:
        self._show()

    def action_leave(self) -> None:
        self.dismiss(None)

    def action_move(self, step: int) -> None:
        self._at = (self._at + step) % len(LINES)
        self._show()

    def action_change(self, step: int) -> None:
        line = LINES[self._at]
        key = line.setting.key
        value = line.next(self._chosen_settings, step)
        try:
            settings.keep(key, value)
        except (OSError, SettingsError) as error:
            reason = getattr(error, "strerror", None) or error
            self.notify(f"not kept: {reason}", severity="warning")
        self._chosen_settings = settings.load()
        if self._chosen_settings.values[key] != value:
            self.notify(f"${line.setting.variable} is set, and wins", severity="warning")
        self.app.settings_changed(self._chosen_settings)  # type: ignore[attr-defined]
        self._show()

    def _show(self) -> None:
        variables = self.app.theme_variables
        accent, muted = variables["role-accent"], variables["role-muted"]
        rows = []
        group = ""
        for index, line in enumerate(LINES):
            chosen = index == self._at
            headline = line.group if line.group != group else ""
            group = line.group
            rows.append(
                Content.assemble(
                    (headline.ljust(GROUP), muted),
                    ("› " if chosen else "  ", accent),
                    (line.label.ljust(LABEL), "bold" if chosen else ""),
                    (line.value(self._chosen_settings).ljust(VALUE), accent),
                )
            )
        setting = LINES[self._at].setting
        meaning = setting.meaning.replace("`", "")
        if isinstance(setting.default, str) and setting.choices:
            meaning += f" ({', '.join(setting.choices)})"
        rows += [Content(""), Content.styled(meaning, muted)]
        rows.append(Content.styled(f"kept in {settings.path()}", muted))
        self.query_one("#lines", Static).update(Content("\n").join(rows))
