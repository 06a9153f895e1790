"""The last line: the keys that matter most here, whole ones only."""

from __future__ import annotations

from textual.reactive import reactive

from gputop.actions import Action, applies, in_footer
from gputop.feed.snapshot import Position
from gputop.render import numbers
from gputop.render.rows import Row, row_width
from gputop.widgets.canvas import Canvas

GAPS = (3, 2)
"""Columns between two keys: the wider where all of them fit so."""


def draw(mode: str, control: bool, width: int, screen: str = "main") -> Row:
    """Keys and labels of a screen in the order of importance, as many as fit."""
    items = [
        _item(action, mode) for action in in_footer(screen, mode) if applies(action, mode, control)
    ]
    wide = 1 + sum(row_width(item) + GAPS[0] for item in items) - GAPS[0] <= width
    gap: Row = [(" " * GAPS[not wide], "")]
    row: Row = [(" ", "")]
    for item in items:
        if row_width(row) + row_width(item) <= width:
            row += [*item, *gap]
    return row


def _item(action: Action, mode: str) -> Row:
    label = action.label_in_replay if mode != "live" and action.label_in_replay else action.label
    key = action.shown.split(" ")[-1] if action.group in ("Panels", "Screens") else action.shown
    return [(key, "bold accent"), (f" {label}", "muted")]


def position_bar(position: Position, width: int) -> Row:
    """Where the replay stands: ``▶ 1x  0:12 ━━━━━●──── 1:40``."""
    glyph = "▶" if position.playing else "‖"
    total = numbers.clock((position.end_ns - position.start_ns) / 1e9)
    here = numbers.clock((position.at_ns - position.start_ns) / 1e9).rjust(len(total))
    speed = f"{position.speed:g}x".ljust(4)
    start: Row = [(f" {glyph} ", "accent"), (speed, "text"), (here + " ", "text")]
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


class Footer(Canvas, drawn=("position",)):
    """Docked at the bottom; in a replay the position stands above the keys."""

    position: reactive[Position | None] = reactive(None, repaint=False)

    def __init__(
        self, mode: str, control: bool, name_of_screen: str = "main", *, id: str | None = None
    ):
        super().__init__(id=id)
        self.name_of_screen = name_of_screen
        self.mode = mode
        self.control = control

    def rows(self, width: int, height: int) -> list[Row]:
        keys = draw(self.mode, self.control, width, self.name_of_screen)
        return (
            [position_bar(self.position, width), keys] if self.position and height > 1 else [keys]
        )
