"""Colour roles that rows may name. Each is a variable of the theme, so a theme sets every colour.

They are no component classes of CSS: parsing thirty rules and styling as many components took a
tenth of the time to the first frame.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.color import Color as RichColor
from rich.terminal_theme import TerminalTheme
from textual.color import Color

from gputop import palette

if TYPE_CHECKING:
    from textual.app import App

XTERM = TerminalTheme(
    (0, 0, 0),
    (229, 229, 229),
    [(0, 0, 0), (205, 0, 0), (0, 205, 0), (205, 205, 0), (30, 80, 238), (205, 0, 205)]
    + [(0, 205, 205), (229, 229, 229)],
    [(127, 127, 127), (255, 0, 0), (0, 255, 0), (255, 255, 0), (92, 92, 255), (255, 0, 255)]
    + [(0, 255, 255), (255, 255, 255)],
)
"""What a terminal's own 16 colours look like: those of xterm, its blue lighter."""
WHITE = RichColor.parse("bright_white")


def colour(app: App[object], role: str) -> RichColor:
    """The colour of a role in the present theme.

    Raises:
        KeyError: there is no such role.
    """
    section = "phase" if role in palette.PHASE else "role"
    return Color.parse(app.theme_variables[f"{section}-{role}"]).rich_color


def on_ground(app: App[object], role: str, ground: RichColor) -> RichColor:
    """The colour of a role for words upon a ground, or white where that is easier to read."""
    return max(colour(app, role), WHITE, key=lambda front: contrast(front, ground))


def contrast(front: RichColor, ground: RichColor) -> float:
    """How far two colours are apart in lightness, 1 to 21, as WCAG has it."""
    light, dark = sorted((_luminance(front), _luminance(ground)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: RichColor) -> float:
    linear = [_linear(part) for part in colour.get_truecolor(XTERM).normalized]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def _linear(part: float) -> float:
    """The light of a part of a colour in sRGB, 0 to 1."""
    return part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
