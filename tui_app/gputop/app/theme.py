"""Two calm themes and the colours of the roles, for any theme that the user picks."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from gputop import palette, settings

if TYPE_CHECKING:
    from textual.theme import Theme

DARK = "gputop-dark"
LIGHT = "gputop-light"

_ROLES_DARK = {
    "text": "#d5d9e0",
    "muted": "#7f8897",
    "track": "#333b48",
    "rule": "#2c3441",
    "accent": "#8fb8e8",
    "cursor": "#26354a",
    "surface": "#14181f",
    "good": "#6cc39a",
    "critical": "#f0716f",
    "high": "#f0a35e",
    "medium": "#e0c96a",
    "info": "#9aa5b5",
    "allocated": "#6cb8e6",
    "reserved": "#35608a",
    "foreign": "#76808f",
    "meter": "#58799b",
    "master": "#9ad9bd",
    "activations": "#e0896f",
    "logits": "#dcc871",
    "wait": "#b0486e",
    "band-critical": "#7d2529",
    "band-high": "#6b4418",
    "band-good": "#1f4a3b",
    "band-info": "#26303d",
    "on-band": "#f4f6f9",
    "on-phase": "#10141a",
    "heat0": "#3c6a8c",
    "heat1": "#41576d",
    "heat2": "#8f8050",
    "heat3": "#cf8d45",
    "heat4": "#e0605e",
}
_ROLES_LIGHT = {
    "text": "#262b33",
    "muted": "#69717e",
    "track": "#cdd3db",
    "rule": "#ccd2da",
    "accent": "#1f5fa8",
    "cursor": "#d6e4f5",
    "surface": "#fbfbf9",
    "good": "#17784f",
    "critical": "#bb2a2a",
    "high": "#a85a08",
    "medium": "#7d6700",
    "info": "#5f6b7a",
    "allocated": "#3f8fcb",
    "reserved": "#a9cbe8",
    "foreign": "#9aa2ad",
    "meter": "#86abc9",
    "master": "#79c7a6",
    "activations": "#cf6a4c",
    "logits": "#c3ad3c",
    "wait": "#c4527f",
    "band-critical": "#f3c1bf",
    "band-high": "#f6d9b4",
    "band-good": "#cbe8da",
    "band-info": "#e2e6eb",
    "on-band": "#1b2027",
    "on-phase": "#14181f",
    "heat0": "#7fb2d6",
    "heat1": "#b9c6d2",
    "heat2": "#d9c06a",
    "heat3": "#dd8b33",
    "heat4": "#c9403c",
}
_ROLES_ANSI = {
    "text": "ansi_default",
    "muted": "ansi_default",
    "track": "ansi_bright_black",
    "rule": "ansi_bright_black",
    "accent": "ansi_cyan",
    "cursor": "ansi_blue",
    "surface": "ansi_black",
    "good": "ansi_green",
    "critical": "ansi_bright_red",
    "high": "ansi_yellow",
    "medium": "ansi_bright_yellow",
    "info": "ansi_default",
    "allocated": "ansi_cyan",
    "reserved": "ansi_blue",
    "foreign": "ansi_bright_black",
    "meter": "ansi_cyan",
    "master": "ansi_bright_green",
    "activations": "ansi_red",
    "logits": "ansi_yellow",
    "wait": "ansi_bright_red",
    "band-critical": "ansi_red",
    "band-high": "ansi_yellow",
    "band-good": "ansi_green",
    "band-info": "ansi_bright_black",
    "on-band": "ansi_black",
    "on-phase": "ansi_black",
    "heat0": "ansi_blue",
    "heat1": "ansi_bright_black",
    "heat2": "ansi_green",
    "heat3": "ansi_bright_yellow",
    "heat4": "ansi_bright_red",
}


def variables(dark: bool, ansi: bool) -> dict[str, str]:
    """Theme variables of all roles: the defaults under every theme."""
    if ansi:
        roles, phases = _ROLES_ANSI, {phase.name: phase.ansi for phase in palette.PHASES}
    elif dark:
        roles, phases = _ROLES_DARK, {phase.name: phase.dark for phase in palette.PHASES}
    else:
        roles, phases = _ROLES_LIGHT, {phase.name: phase.light for phase in palette.PHASES}
    return {
        **{f"role-{name}": colour for name, colour in roles.items()},
        **{f"phase-{name}": colour for name, colour in phases.items()},
    }


def themes() -> list[Theme]:
    """The app's own dark and light theme."""
    from textual.theme import Theme

    dark = Theme(
        name=DARK,
        primary="#8fb8e8",
        secondary="#55b896",
        accent="#8fb8e8",
        warning="#f0a35e",
        error="#f0716f",
        success="#6cc39a",
        foreground="#d5d9e0",
        background="#14181f",
        surface="#1a1f28",
        panel="#222935",
        dark=True,
    )
    light = Theme(
        name=LIGHT,
        primary="#1f5fa8",
        secondary="#17784f",
        accent="#1f5fa8",
        warning="#a85a08",
        error="#bb2a2a",
        success="#17784f",
        foreground="#262b33",
        background="#fbfbf9",
        surface="#f1f1ee",
        panel="#e6e7e4",
        dark=False,
    )
    return [dark, light]


def colourless() -> bool:
    """Whether the user wants no colour (no-color.org), asked as Textual asks it."""
    return "NO_COLOR" in os.environ


def preferred() -> str:
    """The first theme: without colour the terminal's own, else light where it says so."""
    if colourless():
        return "ansi-dark"
    if chosen := theme_wanted():
        return chosen
    background = os.environ.get("COLORFGBG", "").rpartition(";")[2]
    return LIGHT if background in ("7", "15") else DARK


_OWN_NAMES = {"dark": DARK, "light": LIGHT}


def theme_wanted() -> str:
    """The theme of the settings; empty where it is to follow the terminal."""
    from textual.theme import BUILTIN_THEMES

    name = settings.load().text("theme")
    name = _OWN_NAMES.get(name, name)
    if name in BUILTIN_THEMES or name in _OWN_NAMES.values():
        return name
    return ""


def setting_of(name: str) -> str:
    """What a theme is called in the settings."""
    return next((short for short, theme in _OWN_NAMES.items() if theme == name), name)


def for_terminal(light: bool | None) -> str:
    """The theme for a real terminal.

    Args:
        light: whether its background is light, as it told when asked; None where it did not.
    """
    chosen = preferred()
    if colourless() or theme_wanted():
        return chosen
    if light is None:
        light = chosen == LIGHT
    if few_colours():
        return "ansi-light" if light else "ansi-dark"
    return LIGHT if light else DARK


def few_colours() -> bool:
    """Whether the terminal has 16 colours: then its own are used, which it keeps apart."""
    if os.environ.get("COLORTERM", "").strip().lower() in ("truecolor", "24bit"):
        return False
    term = os.environ.get("TERM", "")
    return not any(word in term for word in ("256color", "direct", "kitty", "ghostty", "alacritty"))
