"""The last line: the keys that matter most here, whole ones only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from textual.events import Click
from textual.reactive import reactive

from gputop.actions import Action, applies, in_footer, target
from gputop.feed.snapshot import Position
from gputop.render import numbers
from gputop.render.rows import Row, row_text, row_width
from gputop.widgets.canvas import Canvas

GAPS = (3, 2)
"""Columns between two keys: the wider where all of them fit so."""
MARGIN = 1
"""Columns at both ends."""


class KeyCells(NamedTuple):
    """Cells ``start`` to ``end`` of the line of keys, and what a click there does."""

    start: int
    end: int
    action: Action | None
    """None: the sign that keys are left out."""


def places(
    mode: str,
    control: bool,
    width: int,
    screen: str = "main",
    panel: str = "",
    *,
    ended: bool = False,
    zoomed: bool = False,
    idle: frozenset[str] = frozenset(),
) -> list[KeyCells]:
    """Where keys stand, in the order of importance, as many as fit, help among them; ``panel`` has
    the focus, the ``idle`` actions have nothing to act on.
    """
    offered = [a for a in in_footer(screen, mode, panel, zoomed=zoomed) if a.id not in idle]
    actions = [action for action in offered if applies(action, mode, control, ended)]
    widths = {action.id: row_width(_item(action, mode)) for action in actions}
    room = width - 2 * MARGIN
    gap = GAPS[sum(widths.values()) + GAPS[0] * (len(actions) - 1) > room]
    result: list[KeyCells] = []
    start = MARGIN
    for action in _fitting(actions, widths, room, gap):
        end = start + widths[action.id]
        result.append(KeyCells(start, end, action))
        start = end + gap
    if len(result) < len(actions):
        result.append(KeyCells(start, start + 1, None))
    return result


def _fitting(
    actions: Sequence[Action], widths: Mapping[str, int], room: int, gap: int
) -> list[Action]:
    """All of them, or the most important ones with help, which lists the others, and room for the
    sign that some are left out.
    """
    if sum(widths.values()) + gap * (len(actions) - 1) <= room:
        return list(actions)
    shown_ids = {action.id for action in actions if action.id == "help"}
    left_over = room - 1 - sum(widths[name] + gap for name in shown_ids)
    for action in actions:
        cells = widths[action.id] + gap
        if action.id not in shown_ids and cells <= left_over:
            shown_ids.add(action.id)
            left_over -= cells
    return [action for action in actions if action.id in shown_ids]


def draw(keys: Sequence[KeyCells], mode: str) -> Row:
    """Keys and labels where they stand."""
    row: Row = [(" ", "")]
    for key in keys:
        gap = key.start - row_width(row)
        item = _item(key.action, mode) if key.action else [("…", "muted")]
        row += [(" " * gap, ""), *item]
    return row


def _item(action: Action, mode: str) -> Row:
    return [(action.key, "bold accent"), (f" {action.label_in(mode)}", "muted")]


def position_bar(position: Position, width: int) -> Row:
    """Where the replay stands: ``▶  1x  0:12 ━━━━━●──── 1:40``."""
    glyph = "▶" if position.playing else "‖"
    total = numbers.clock((position.end_ns - position.start_ns) / 1e9)
    here = numbers.clock((position.at_ns - position.start_ns) / 1e9).rjust(len(total))
    speed = f"{position.speed:g}x".ljust(4)
    start: Row = [(f" {glyph}  ", "accent"), (speed, "text"), (here + " ", "text")]
    end: Row = [(" " + total + " ", "muted")]
    cells = max(width - row_width(start) - row_width(end), 1)
    done = min(int(position.share * (cells - 1)), cells - 1)
    return [
        *start,
        ("━" * done, "accent"),
        ("●", "bold accent"),
        ("─" * (cells - done - 1), "track"),
        *end,
    ]


class Footer(Canvas, drawn=("position", "panel", "control", "ended", "zoomed", "idle")):
    """Docked at the bottom; in a replay the position stands above the keys."""

    position: reactive[Position | None] = reactive(None, repaint=False)
    panel: reactive[str] = reactive("", repaint=False)
    """Id of the panel that has the focus."""
    control: reactive[bool] = reactive(False, repaint=False)
    """Whether there is a training that can be asked."""
    ended: reactive[bool] = reactive(False, repaint=False)
    """Whether the run is over."""
    zoomed: reactive[bool] = reactive(False, repaint=False)
    """Whether the panel with the focus has the whole screen."""
    idle: reactive[frozenset[str]] = reactive(frozenset(), repaint=False)
    """Actions that have nothing to act on as long as the page is as it is."""

    def __init__(
        self, mode: str, control: bool, name_of_screen: str = "main", *, id: str | None = None
    ):
        super().__init__(id=id)
        self.name_of_screen = name_of_screen
        self.mode = mode
        self.set_reactive(Footer.control, control)

    def rows(self, width: int, height: int) -> list[Row]:
        keys = draw(self._keys(width), self.mode)
        if self.position and height > 1:
            return [position_bar(self.position, width), keys]
        return [keys]

    def on_click(self, event: Click) -> None:
        """Do what stands under the pointer: a key's action, or seek where the bar was hit."""
        event.stop()
        if self.position and self.size.height > 1 and event.y == 0:
            self._seek(event.x)
            return
        for key in self._keys(self.size.width):
            if key.action and key.start <= event.x < key.end:
                self.app.call_later(self.screen.run_action, target(key.action))

    def _keys(self, width: int) -> list[KeyCells]:
        return places(
            self.mode,
            self.control,
            width,
            self.name_of_screen,
            self.panel,
            ended=self.ended,
            zoomed=self.zoomed,
            idle=self.idle,
        )

    def _seek(self, x: int) -> None:
        assert self.position is not None
        first, last = bar_cells(self.position, self.size.width)
        share = min(max((x - first) / max(last - first, 1), 0.0), 1.0)
        order = "app.play" if x < first - 8 else f"app.seek_to({share})"
        self.app.call_later(self.screen.run_action, order)


def bar_cells(position: Position, width: int) -> tuple[int, int]:
    """First and last cell of the replay's bar."""
    text = row_text(position_bar(position, width))
    cells = [x for x, char in enumerate(text) if char in "━●─"]
    return cells[0], cells[-1]
