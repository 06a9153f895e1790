"""The cells of the screen that an app shows, and the picture of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from rich.color import Color
from rich.segment import Segment
from rich.style import Style
from textual.app import App

from gputop.render.picture import Piece, Row, joined, picture
from gputop.widgets.roles import XTERM


def shown(app: App[Any], title: str, spoken: Callable[[str], str] | None = None) -> str:
    """The screen that an app shows at this moment; ``spoken``: what becomes of each text."""
    rows = rows_of(app)
    if spoken is not None:
        rows = [tuple(p._replace(text=spoken(p.text)) for p in row) for row in rows]
    cells: Counter[str] = Counter()
    for row in rows:
        for piece in row:
            cells[piece.background] += len(piece.text)
    ground = cells.most_common(1)[0][0]
    return picture(rows, app.size.width, ground, title)


def rows_of(app: App[Any]) -> list[Row]:
    """The cells of the screen that an app shows at this moment."""
    return [row_of(strip) for strip in app.screen._compositor.render_strips()]


def row_of(segments: Iterable[Segment]) -> Row:
    """The cells of one row, from its left end on."""
    column, pieces = 0, []
    for segment in segments:
        front, back, bold = _look(segment.style or Style.null())
        pieces.append(Piece(column, segment.text, front, back, bold))
        column += segment.cell_length
    return joined(pieces)


def _look(style: Style) -> tuple[str, str, bool]:
    """Colour, background, and whether it is bold."""
    front = _triplet(style.color, foreground=True)
    back = _triplet(style.bgcolor, foreground=False)
    if style.dim:
        front = [(ink + ground) // 2 for ink, ground in zip(front, back, strict=True)]
    if style.reverse:
        front, back = back, front
    names = [f"#{red:02x}{green:02x}{blue:02x}" for red, green, blue in (front, back)]
    return names[0], names[1], bool(style.bold)


def _triplet(colour: Color | None, foreground: bool) -> list[int]:
    chosen = colour or Color.default()
    return list(chosen.get_truecolor(XTERM, foreground))
