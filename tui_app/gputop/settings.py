"""The user's settings: one TOML file, read when it is there. The table is the only place of what
there is to set: the file, its checks, the screen and docs/settings.md are made from it.

An option of the command line wins over the environment, that over the file, the file over the
default.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

from gputop.panels import panel_ids
from gputop_probes.locations import xdg_directory

Value = bool | str | tuple[str, ...]

EVENTS = ("finding", "hang", "end")
"""What can be notified of."""
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


class Setting(NamedTuple):
    """One thing to set."""

    key: str
    """``section.name``, or a name before all sections."""
    default: Value
    meaning: str
    choices: tuple[str, ...] = ()
    """Values of a text, or entries of a list; empty: any."""
    open_ended: bool = False
    """Whether other texts than the choices are right, too: names of Textual's themes."""
    shown: bool = True
    """Whether the screen changes it; else only the file does."""

    @property
    def variable(self) -> str:
        """The environment variable: ``GPUTOP_TERMINAL_TITLE``."""
        return "GPUTOP_" + self.key.upper().replace(".", "_")


SETTINGS: tuple[Setting, ...] = (
    Setting(
        "theme",
        "auto",
        "colours of the screen; `auto` follows the terminal's background",
        ("auto", "dark", "light"),
        open_ended=True,
    ),
    Setting("terminal.title", True, "the run in the title of the window, its progress in the tab"),
    Setting(
        "terminal.links",
        "file",
        "what a file:line opens when it is clicked",
        ("file", "vscode", "cursor", "off"),
    ),
    Setting(
        "notifications.on",
        EVENTS,
        "what is worth a word: the first critical finding, a hang, the end",
        EVENTS,
    ),
    Setting("notifications.bell", True, "ring the terminal's bell for it"),
    Setting("notifications.desktop", True, "have the terminal show it on the desktop (OSC 9)"),
    Setting(
        "notifications.to",
        (),
        "addresses and commands that hear of it, as `gputop run --notify` takes them",
        shown=False,
    ),
    Setting("panels.hidden", (), "panels that the main screen leaves out", tuple(panel_ids())),
)
_BY_KEY = {setting.key: setting for setting in SETTINGS}


class SettingsError(ValueError):
    """The file or a variable cannot be used; the message is one line that says how to mend it."""


def path() -> Path:
    """``$XDG_CONFIG_HOME/gputop/config.toml``, below ``~/.config`` where that is not set."""
    return xdg_directory("XDG_CONFIG_HOME", ".config") / "config.toml"


class Settings(NamedTuple):
    """All settings, and what is wrong with where they come from."""

    values: Mapping[str, Value]
    trouble: tuple[str, ...] = ()

    def on(self, key: str) -> bool:
        """A switch."""
        return self.values[key] is True

    def text(self, key: str) -> str:
        """A text."""
        return str(self.values[key])

    def entries(self, key: str) -> tuple[str, ...]:
        """A list."""
        value = self.values[key]
        return value if isinstance(value, tuple) else ()


def load(file: Path | None = None) -> Settings:
    """The settings that hold now; a value that cannot be used is left at its default and named."""
    values: dict[str, Value] = {setting.key: setting.default for setting in SETTINGS}
    trouble: list[str] = []
    if not os.environ.get("GPUTOP_NO_CONFIG"):
        _take_file(file or path(), values, trouble)
    for setting in SETTINGS:
        text = os.environ.get(setting.variable)
        if text:
            try:
                values[setting.key] = from_text(setting, text)
            except SettingsError as error:
                trouble.append(f"${setting.variable}: {error}")
    return Settings(values, tuple(trouble))


def _take_file(file: Path, values: dict[str, Value], trouble: list[str]) -> None:
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        trouble.append(f"{file} is not used: {reason}")
        return
    try:
        from_file = flat(text)
    except SettingsError as error:
        trouble.append(f"{file} is not used: {error}")
        return
    for key, value in from_file.items():
        try:
            values[key] = checked(key, value)
        except SettingsError as error:
            trouble.append(f"{file}: {error}")


def flat(text: str) -> dict[str, Any]:
    """The values of a file by dotted key.

    Raises:
        SettingsError: it is no TOML.
    """
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"it is no TOML: {error}") from None
    values: dict[str, Any] = {}
    for name, value in data.items():
        if isinstance(value, dict):
            values |= {f"{name}.{inner}": item for inner, item in value.items()}
        else:
            values[name] = value
    return values


def checked(key: str, value: Any) -> Value:
    """A value of the right kind for its key.

    Raises:
        SettingsError: no setting has this key, or not this kind of value.
    """
    setting = _BY_KEY.get(key)
    if setting is None:
        raise SettingsError(_unknown(key))
    type_ = type(setting.default)
    if type_ is tuple and isinstance(value, list) and all(isinstance(item, str) for item in value):
        value = tuple(value)
    if type(value) is not type_:
        raise SettingsError(f"{key} is {_kind(setting)}, not {value!r}")
    for item in value if isinstance(value, tuple) else (value,):
        if setting.open_ended or not setting.choices or not isinstance(item, str):
            continue
        if item not in setting.choices:
            raise SettingsError(f"{key} is {_kind(setting)}, not {item!r}")
    return cast(Value, value)


def _unknown(key: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(key, _BY_KEY, n=1)
    if near:
        hint = f"did you mean {near[0]}?"
    else:
        hint = f"there are {', '.join(_BY_KEY)}"
    return f"no setting is called {key}: {hint}"


def _kind(setting: Setting) -> str:
    if isinstance(setting.default, bool):
        return "true or false"
    if isinstance(setting.default, tuple):
        if setting.choices:
            return f"a list of {', '.join(setting.choices)}"
        return "a list of texts"
    return " or ".join(setting.choices) if setting.choices else "a text"


def from_text(setting: Setting, text: str) -> Value:
    """The value that a variable's text stands for.

    Raises:
        SettingsError: it stands for none.
    """
    if isinstance(setting.default, bool):
        if text.lower() not in _TRUE + _FALSE:
            raise SettingsError(f"{_kind(setting)}, not {text!r}")
        return text.lower() in _TRUE
    if isinstance(setting.default, tuple):
        words = [word.strip() for word in text.split(",") if word.strip() not in ("", "none")]
        return checked(setting.key, words)
    return checked(setting.key, text)


# ---- keeping


def keep(key: str, value: Value, file: Path | None = None) -> Path:
    """Write one setting into the file; comments and all other lines stay as they are.

    Raises:
        OSError: it cannot be written.
        SettingsError: what is in the file is no TOML, and stays.
    """
    file = file or path()
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    flat(text)
    changed = replaced(text, key, value)
    flat(changed)
    file.parent.mkdir(parents=True, exist_ok=True)
    fresh = file.with_suffix(f".{os.getpid()}.new")
    fresh.write_text(changed, encoding="utf-8")
    fresh.replace(file)
    return file


def replaced(text: str, key: str, value: Value) -> str:
    """A file's text with one setting changed or added."""
    section, _, name = key.rpartition(".")
    new = f"{name} = {_toml(value)}"
    lines = text.splitlines()
    begin, end = _section(lines, section)
    if begin is None:
        return "\n".join([*lines, *([""] if lines else []), f"[{section}]", new]) + "\n"
    for index in range(begin, end):
        if re.match(rf"\s*{re.escape(name)}\s*=", lines[index]):
            last = _last_line(lines, index, end)
            lines[index : last + 1] = [new]
            return "\n".join(lines) + "\n"
    while end > begin and not lines[end - 1].strip():
        end -= 1
    lines.insert(end, new)
    return "\n".join(lines) + "\n"


def _section(lines: list[str], section: str) -> tuple[int | None, int]:
    """First line and end of a section's body; None where it has none."""
    heads = [index for index, line in enumerate(lines) if re.match(r"\s*\[", line)]
    if not section:
        return 0, min(heads, default=len(lines))
    for index in heads:
        if re.match(rf"\s*\[\s*{re.escape(section)}\s*\]", lines[index]):
            return index + 1, min((head for head in heads if head > index), default=len(lines))
    return None, len(lines)


def _last_line(lines: list[str], first: int, end: int) -> int:
    """Last line of the value that begins in a line: a list may go over several."""
    for last in range(first, end):
        try:
            flat("\n".join(lines[first : last + 1]))
        except SettingsError:
            continue
        return last
    return first


def _toml(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return f"[{', '.join(map(_quoted, value))}]"
    return _quoted(value)


def _quoted(text: str) -> str:
    import json

    return json.dumps(text, ensure_ascii=False)


# ---- the page


def table() -> str:
    """The settings as a table in Markdown."""
    lines = ["| key | default | variable | meaning |", "|---|---|---|---|"]
    for setting in SETTINGS:
        if setting.choices:
            choices = f" ({', '.join(setting.choices)})"
        else:
            choices = ""
        default = _toml(setting.default)
        lines.append(
            f"| `{setting.key}` | `{default}` | `{setting.variable}` | {setting.meaning}{choices} |"
        )
    return "\n".join(lines)
