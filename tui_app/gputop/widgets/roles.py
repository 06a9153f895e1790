"""Colour roles that rows may name. Each is a variable of the theme, so a theme sets every colour.

They are no component classes of CSS: parsing thirty rules and styling as many components took a
tenth of the time to the first frame.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.color import Color as RichColor
from textual.color import Color

from gputop import palette

if TYPE_CHECKING:
    from textual.app import App


def colour(app: App[object], role: str) -> RichColor:
    """The colour of a role in the present theme.

    Raises:
        KeyError: there is no such role.
    """
    section = "phase" if role in palette.PHASE else "role"
    return Color.parse(app.theme_variables[f"{section}-{role}"]).rich_color
