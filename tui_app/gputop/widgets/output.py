"""The command's output. Only lines on the screen are parsed, so thousands of lines a second cost
little.
"""

from __future__ import annotations

from rich.segment import Segment
from rich.style import Style
from textual.events import Click
from textual.geometry import Size
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

from gputop.feed.snapshot import Snapshot
from gputop.output.ansi import PLAIN, Look, resolve, resolve_text
from gputop.output.tail import OutputView
from gputop.render.rows import Row, fill
from gputop.widgets import roles
from gputop.widgets.frame import EDGES, SIDES, edge
from gputop.widgets.panel import Described, go_to_tab, tabs, title_row
from gputop_probes.record.plain import blanked

_CACHE = 600


class Output(Described, ScrollView, can_focus=True):
    """Panel 6: a title line, then lines of the output, the newest at the bottom unless the user
    scrolled away.
    """

    DEFAULT_CSS = "Output { scrollbar-size: 0 0; overflow: hidden auto; }"
    tabbed: reactive[bool] = reactive(False)
    boxed: reactive[bool] = reactive(False)
    snapshot: reactive[Snapshot | None] = reactive(None, repaint=False)

    def __init__(self, *, id: str | None = None):
        super().__init__(id=id)
        self.view = OutputView()
        self.follow = True
        self.needle = ""
        self._cache: dict[tuple[int, int], Strip] = {}
        self._looks: dict[Look, Style] = {}

    def show(self, view: OutputView) -> None:
        """The output has grown."""
        self.view = view
        around = EDGES if self.boxed else 1
        self.virtual_size = Size(self.size.width, len(view.lines) + around)
        self.refresh()
        if self.follow:
            self.call_after_refresh(self._stick)

    def watch_boxed(self) -> None:
        """A frame takes a row more: what is scrolled to is counted anew."""
        if self.is_attached:
            self.show(self.view)

    def _stick(self) -> None:
        """Stay at the newest line."""
        if self.follow:
            self.scroll_to(y=self.max_scroll_y, animate=False, immediate=True)

    def on_resize(self) -> None:
        if self.follow:
            self.call_after_refresh(self._stick)

    def render_line(self, y: int) -> Strip:
        width, height = self.size
        if y == 0:
            return self._row(self._head(width))
        if not self.boxed:
            return self._line(y - 1, width)
        rule = "accent" if self.has_focus else "rule"
        if y == height - 1:
            return self._row([("╰" + "─" * (width - 2) + "╯", rule)])
        sides = Strip([Segment("│ ", self._role(rule))]), Strip([Segment(" │", self._role(rule))])
        return Strip.join([sides[0], self._line(y - 1, width - SIDES), sides[1]])

    def _head(self, width: int) -> Row:
        note: Row = [(self._note(), "muted")]
        if self.tabbed and self.follow:
            note = tabs(self.number, width)
        if not self.boxed:
            return title_row(self.number, self.title, note, width, self.has_focus)
        rule = "accent" if self.has_focus else "rule"
        shown = note if note[0][0] else []
        return edge(self.title, width, number=self.number, note=shown, rule=rule)

    def _line(self, y: int, width: int) -> Strip:
        """A line of the output in exactly ``width`` cells."""
        index = round(self.scroll_offset.y) + y
        if not self.view.lines and y == 0:
            empty = Segment(self._empty(), self._role("muted"))
            return Strip([empty]).adjust_cell_length(width, self.rich_style)
        if index >= len(self.view.lines):
            return Strip.blank(width, self.rich_style)
        strip = self._strip(index)
        if strip.cell_length <= width:
            return strip.extend_cell_length(width, self.rich_style)
        more = Segment("…", self._role("muted"))
        return Strip.join([strip.crop(0, width - 1), Strip([more], 1)])

    def on_click(self, event: Click) -> None:
        if event.y == 0 and self.tabbed:
            go_to_tab(self, self.number, event.x)

    def _note(self) -> str:
        if self.follow or not self.view.lines:
            return (
                f"{self.view.dropped + len(self.view.lines):,} lines{self._of_when()}"
                if self.view.lines
                else ""
            )
        return f"line {self.view.dropped + round(self.scroll_offset.y) + 1:,}, end: follow again"

    def _of_when(self) -> str:
        """Older records do not say when a line came: a replay of one shows all of them
        throughout.
        """
        position = self.snapshot.position if self.snapshot else None
        if self.snapshot is None or position is None or position.share >= 1:
            return ""
        return ", the whole run's" if self.snapshot.output_lengths is None else ""

    def _empty(self) -> str:
        note = self.snapshot.output_note if self.snapshot else ""
        return note or "The command has written nothing yet."

    def _row(self, row: Row) -> Strip:
        width = self.size.width
        segments = []
        for text, name in fill(row, width):
            bold = name.startswith("bold ")
            role = name.removeprefix("bold ")
            style = self._role(role) if role else self.rich_style
            segments.append(Segment(blanked(text), style + Style(bold=True) if bold else style))
        return Strip(segments, width)

    def _role(self, role: str) -> Style:
        return self.rich_style + Style(color=roles.colour(self.app, role))

    def _strip(self, index: int) -> Strip:
        raw = self.view.lines[index]
        key = (self.view.dropped + index, len(raw))
        strip = self._cache.get(key)
        if strip is None or "\r" in raw:
            if len(self._cache) > _CACHE:
                self._cache.clear()
            marked = bool(self.needle) and self.needle in resolve_text(raw).lower()
            edge = Segment("▌", self._role("accent")) if marked else Segment(" ", self.rich_style)
            strip = self._cache[key] = Strip(
                [edge, *(Segment(t, self._style(look)) for t, look in resolve(raw))]
            )
        return strip

    def _style(self, look: Look) -> Style:
        style = self._looks.get(look)
        if style is None:
            style = self._looks[look] = (
                self.rich_style if look == PLAIN else self.rich_style + _rich(look)
            )
        return style

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._cache.clear()
        self._looks.clear()

    def watch_snapshot(self) -> None:
        if not self.view.lines and self.is_attached:
            self.refresh()

    def copy_text(self, snapshot: Snapshot) -> str:
        """The lines on the screen."""
        first = round(self.scroll_offset.y)
        return "\n".join(
            resolve_text(raw).rstrip()
            for raw in self.view.lines[first : first + self.size.height - 1]
        )

    def move(self, step: int) -> None:
        """Scroll by ``step`` lines."""
        self.scroll_to(y=self.scroll_offset.y + step, animate=False)

    def page(self, direction: int) -> None:
        """Scroll by one screenful."""
        self.move(direction * max(1, self.size.height - 2))

    def find(self, needle: str, backwards: bool = True) -> bool:
        """Mark lines that hold ``needle`` and go to the next one above. Returns whether there is
        any.
        """
        self.needle = needle.lower()
        self._cache.clear()
        self.refresh()
        if not needle:
            return False
        here = round(self.scroll_offset.y)
        hits = [
            i for i, raw in enumerate(self.view.lines) if self.needle in resolve_text(raw).lower()
        ]
        if not hits:
            return False
        above = [i for i in hits if i < here]
        self.follow = False
        self.scroll_to(y=above[-1] if above else hits[-1], animate=False)
        return True

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if new_value != old_value and self.is_attached:
            self.follow = new_value >= self.max_scroll_y


def _rich(look: Look) -> Style:
    return Style(
        color=look.front,
        bgcolor=look.back,
        bold=look.bold or None,
        dim=look.dim or None,
        italic=look.italic or None,
        underline=look.underline or None,
        reverse=look.reverse or None,
    )
