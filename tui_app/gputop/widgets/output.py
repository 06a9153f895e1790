"""The command's output. Only lines on the screen are parsed: thousands a second cost little."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.binding import BindingType
from textual.events import Click
from textual.geometry import Size
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

from gputop.actions import of_panel
from gputop.feed.snapshot import Snapshot
from gputop.output.ansi import PLAIN, Look, resolve, resolve_text
from gputop.output.tail import OutputView
from gputop.render.rows import Row, fill, text_width
from gputop.widgets import roles
from gputop.widgets.frame import EDGES, SIDES, edge
from gputop.widgets.panel import Described, go_to_tab, tabs, title_row
from gputop_analysis.text import counted
from gputop_probes.record.plain import blanked

_CACHE = 600
SIDEWAYS = 20
"""Cells that one key scrolls to the side."""


class Output(Described, ScrollView, can_focus=True):
    """Panel 6: a title, then lines of the output, newest at the bottom unless scrolled away."""

    BINDINGS: ClassVar[list[BindingType]] = [*of_panel("output")]
    DEFAULT_CSS = "Output { scrollbar-size: 0 0; overflow: hidden auto; }"
    tabbed: reactive[bool] = reactive(False)
    boxed: reactive[bool] = reactive(False)
    snapshot: reactive[Snapshot | None] = reactive(None, repaint=False)

    def __init__(self, *, id: str | None = None):
        super().__init__(id=id)
        self.view = OutputView()
        self.follow = True
        self.needle = ""
        self.wrapped = False
        """Whether long lines go on in the next row."""
        self.aside = 0
        """Cells of each line that are scrolled away to the left."""
        self._starts: list[int] = []
        """Where lines are wrapped: the row in which each one ends and the next begins."""
        self._widths: dict[int, tuple[str, int]] = {}
        """By a line's lasting number: what was written to it, and cells of that with its mark."""
        self._cache: dict[int, tuple[str, Strip]] = {}
        """By a line's lasting number: what was written to it, and that as it is drawn."""
        self._looks: dict[Look, Style] = {}

    def show(self, view: OutputView) -> None:
        """The output has grown."""
        self.view = view
        around = EDGES if self.boxed else 1
        self.virtual_size = Size(self.size.width, self._count_rows() + around)
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

    def _count_rows(self) -> int:
        """Rows of all lines, as they are drawn now."""
        if not self.wrapped:
            return len(self.view.lines)
        cells = self._cells()
        rows = (max(-(-self._width_of(i) // cells), 1) for i in range(len(self.view.lines)))
        self._starts = list(accumulate(rows))
        return self._starts[-1] if self._starts else 0

    def _cells(self) -> int:
        """Cells of a row that a line has."""
        return max(self.size.width - (SIDES if self.boxed else 0), 2)

    def _width_of(self, index: int) -> int:
        """Cells of a line with its mark."""
        raw, number = self.view.lines[index], self.view.dropped + index
        measured = self._widths.get(number)
        if measured is not None and measured[0] == raw:
            return measured[1]
        if len(self._widths) > 4 * len(self.view.lines) + _CACHE:
            self._widths.clear()
        cells = 1 + text_width(resolve_text(raw))
        self._widths[number] = (raw, cells)
        return cells

    def _place(self, row: int) -> tuple[int, int]:
        """The line that is drawn in a row, and which part of it."""
        if not self.wrapped:
            return row, 0
        index = bisect_right(self._starts, row)
        before = self._starts[index - 1] if index else 0
        return index, row - before

    def _row_of(self, index: int) -> int:
        """The row in which a line begins."""
        if not self.wrapped or not index:
            return index
        return self._starts[index - 1]

    def action_wrap(self) -> None:
        """Long lines go on in the next row, or end at the edge again; the line on top stays."""
        index = self._place(round(self.scroll_offset.y))[0]
        self.wrapped, self.aside = not self.wrapped, 0
        following = self.follow
        self.show(self.view)
        if not following and self.view.lines:
            row = self._row_of(min(index, len(self.view.lines) - 1))
            self.call_after_refresh(self.scroll_to, y=row, animate=False)

    def action_sideways(self, direction: int) -> None:
        """Show what long lines hold further right, or left of it again."""
        if self.wrapped or not self.view.lines:
            return
        first = round(self.scroll_offset.y)
        shown = range(first, min(first + self.size.height, len(self.view.lines)))
        furthest = max((self._width_of(index) for index in shown), default=0) - self._cells()
        self.aside = min(max(self.aside + direction * SIDEWAYS, 0), max(furthest, 0))
        self.refresh()

    def on_resize(self) -> None:
        if self.wrapped:
            self.show(self.view)
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
        as_it_comes = self.follow and not self.wrapped and not self.aside
        if self.tabbed and as_it_comes:
            note = tabs(self.number, width)
        if not self.boxed:
            return title_row(self.number, self.title, note, width, self.has_focus)
        rule = "accent" if self.has_focus else "rule"
        shown = note if note[0][0] else []
        return edge(self.title, width, number=self.number, note=shown, rule=rule)

    def _line(self, y: int, width: int) -> Strip:
        """A line of the output in exactly ``width`` cells."""
        index, part = self._place(round(self.scroll_offset.y) + y)
        if not self.view.lines and y == 0:
            empty = Segment(self._empty(), self._role("muted"))
            return Strip([empty]).adjust_cell_length(width, self.rich_style)
        if index >= len(self.view.lines):
            return Strip.blank(width, self.rich_style)
        strip = self._strip(index)
        if self.wrapped:
            strip = strip.crop(part * width, (part + 1) * width)
        if strip.cell_length <= width and not self.aside:
            return strip.extend_cell_length(width, self.rich_style)
        more = strip.cell_length > self.aside + width
        end = Strip([Segment("…", self._role("muted"))], 1)
        shown = strip.crop(self.aside, self.aside + width - more)
        row = Strip.join([shown, end]) if more else shown
        return row.extend_cell_length(width, self.rich_style)

    def on_click(self, event: Click) -> None:
        if event.y == 0 and self.tabbed:
            go_to_tab(self, self.number, event.x)

    def _note(self) -> str:
        if not self.view.lines:
            return ""
        if self.wrapped:
            how = "wrapped, "
        else:
            how = f"from column {self.aside + 1}, " * bool(self.aside)
        if self.follow:
            return f"{how}{counted(self.view.written, 'line')}{self._of_when()}"
        first = self._place(round(self.scroll_offset.y))[0]
        return f"{how}line {self.view.dropped + first + 1:,}, end: follow again"

    def _of_when(self) -> str:
        """Older records do not say when a line came: their replay shows all throughout."""
        position = self.snapshot.position if self.snapshot else None
        if self.snapshot is None or position is None or position.share >= 1:
            return ""
        if self.snapshot.output_lengths is None:
            return ", the whole run's"
        return ""

    def _empty(self) -> str:
        if self.snapshot is not None and self.snapshot.unread:
            return ""
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
        raw, number = self.view.lines[index], self.view.dropped + index
        drawn = self._cache.get(number)
        if drawn is not None and drawn[0] == raw:
            return drawn[1]
        if len(self._cache) > _CACHE:
            self._cache.clear()
        if self.needle and self.needle in resolve_text(raw).lower():
            mark = Segment("▌", self._role("accent"))
        else:
            mark = Segment(" ", self.rich_style)
        strip = Strip([mark, *(Segment(t, self._style(look)) for t, look in resolve(raw))])
        self._cache[number] = (raw, strip)
        return strip

    def _style(self, look: Look) -> Style:
        style = self._looks.get(look)
        if style is None:
            if look == PLAIN:
                style = self._looks[look] = self.rich_style
            else:
                style = self._looks[look] = self.rich_style + _rich(look)
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
        first = self._place(round(self.scroll_offset.y))[0]
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
        """Mark lines with ``needle`` and go to the next one above. Returns whether there is any."""
        self.needle = needle.lower()
        self._cache.clear()
        self.refresh()
        if not needle:
            return False
        here = self._place(round(self.scroll_offset.y))[0]
        hits = [
            i for i, raw in enumerate(self.view.lines) if self.needle in resolve_text(raw).lower()
        ]
        if not hits:
            return False
        above = [i for i in hits if i < here]
        self.follow = False
        self.scroll_to(y=self._row_of(above[-1] if above else hits[-1]), animate=False)
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
