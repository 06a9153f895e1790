"""A widget that draws rows of roles and repaints only the lines that changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.segment import Segment
from rich.style import Style
from textual.geometry import NULL_SIZE, Region
from textual.strip import Strip
from textual.widget import Widget

from gputop.render.rows import Row, fill, row_text
from gputop.widgets import roles
from gputop_probes.record.plain import blanked

if TYPE_CHECKING:
    from gputop.links import Links

REVERSED = frozenset(["band-critical", "band-high"])
"""Grounds that are drawn reversed where there is no colour."""
ON_GROUNDS = frozenset(["on-band", "on-phase"])
"""Roles of words that stand on many grounds."""
CHOSEN = "/cursor"
"""Ends the style of what stands in the chosen row."""


class Canvas(Widget):
    """Base of everything that shows a snapshot. Subclasses say what to draw in ``rows``, and of
    which of their reactive values a change is to be drawn: ``class Form(Canvas, drawn=("cursor",
    "typed"))``.
    """

    def __init_subclass__(cls, drawn: tuple[str, ...] = (), **options: Any):
        super().__init_subclass__(**options)
        for name in drawn:
            setattr(cls, f"watch_{name}", lambda self: self.redraw())

    def __init__(self, *, id: str | None = None):
        super().__init__(id=id)
        self._drawn: list[Row] = []
        self._drawn_for = NULL_SIZE
        self._styles: dict[str, Style] = {}

    def rows(self, width: int, height: int) -> list[Row]:
        """What to draw into ``width`` x ``height`` cells; fewer rows leave the rest empty."""
        raise AssertionError(f"{type(self).__name__} draws nothing")

    @property
    def drawn_text(self) -> str:
        """What was drawn last, without colours."""
        return "\n".join(map(row_text, self._drawn))

    @property
    def mono(self) -> bool:
        """Whether the terminal lacks colour or blocks, so that letters tell phases apart."""
        return self.app.no_color or getattr(self.app, "ascii_only", False)

    def redraw(self) -> None:
        """Draw again and mark the lines that differ."""
        width, height = self.size
        if width <= 0 or height <= 0 or not self.is_attached:
            self._drawn_for = NULL_SIZE  # what is hidden now is drawn anew when it comes back
            return
        old, drawn = self._drawn, self._draw()
        changed = [y for y in range(height) if y >= len(old) or old[y] != drawn[y]]
        if changed:
            self.refresh(*(Region(0, y, width, 1) for y in changed))

    def _draw(self) -> list[Row]:
        width, height = self._drawn_for = self.size
        drawn = self.rows(width, height)[:height]
        self._drawn = [*drawn, *([] for _ in range(height - len(drawn)))]
        return self._drawn

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        if self._drawn_for != self.size:
            # a new size is painted before its event comes: not an empty picture first
            self._draw()
        row = self._drawn[y] if y < len(self._drawn) else []
        links = getattr(self.app, "links", None)
        segments: list[Segment] = []
        for text, name in fill(row, width):
            if name.endswith(CHOSEN):
                name = _readable(text, name)
            if links is not None and ".py:" in text:
                segments += self._linked(blanked(text), name, links)
            else:
                segments.append(Segment(blanked(text), self._style(name)))
        return Strip(segments, width)

    def _linked(self, text: str, name: str, links: Links) -> list[Segment]:
        """A text with the places in it as links of the terminal."""
        segments, done = [], 0
        for link in links.of(text):
            key = f"{name}\0{link.url}"
            if key not in self._styles:
                self._styles[key] = self._style(name) + Style(link=link.url)
            segments.append(Segment(text[done : link.begin], self._style(name)))
            segments.append(Segment(text[link.begin : link.end], self._styles[key]))
            done = link.end
        return [*segments, Segment(text[done:], self._style(name))]

    def watch_has_focus(self, _has_focus: bool) -> None:
        super().watch_has_focus(_has_focus)
        if self.can_focus:
            self.redraw()

    def on_resize(self) -> None:
        if self._drawn_for != self.size:
            self.redraw()

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._styles.clear()

    def _style(self, name: str) -> Style:
        style = self._styles.get(name)
        if style is None:
            style = self._styles[name] = self._make_style(name)
        return style

    def _make_style(self, name: str) -> Style:
        if name.startswith("bold "):
            return self._make_style(name.removeprefix("bold ")) + Style(bold=True)
        front, _, back = name.partition("/")
        if front:
            style = self.rich_style + Style(color=roles.colour(self.app, front))
        else:
            style = self.rich_style
        if not back:
            return style
        if back == "cursor" and self.app.current_theme.ansi:
            # its blue has every other colour of the 16 hard to read: words are reversed, and what
            # is drawn keeps the usual ground
            drawn = front != "text" and not self.app.no_color
            return style if drawn else style + Style(reverse=True)
        if self.app.no_color and back in REVERSED:
            return style + Style(reverse=True)
        ground = roles.colour(self.app, back)
        if front in ON_GROUNDS:
            style += Style(color=roles.on_ground(self.app, front, ground))
        return style + Style(bgcolor=ground)


def upon_cursor(row: Row) -> Row:
    """A row as the chosen one."""
    return [(text, (style.partition("/")[0] or "text") + CHOSEN) for text, style in row]


def _readable(text: str, name: str) -> str:
    """The style of a piece of the chosen row: words in one colour, drawings in their own."""
    drawn = any("\u2500" <= char < "\u2900" for char in text)
    if drawn and not any(map(str.isalnum, text)):
        return name
    return ("bold text" if name.startswith("bold ") else "text") + CHOSEN
