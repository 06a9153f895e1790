"""Memory, GPUs and host over the run: tracks on one time axis, one cursor through all."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import BindingType
from textual.events import Leave, MouseMove
from textual.reactive import reactive

from gputop.actions import of_panel
from gputop.feed.prediction import Prediction
from gputop.feed.snapshot import Resources, Snapshot, Track
from gputop.render import braille, numbers
from gputop.render.rows import Row, clip, left, right, say
from gputop.widgets.panel import Panel
from gputop_analysis.overview import GPUS_ADDED

LABEL = 12
FIGURE = 13
LEAST_RATE = 1.0
"""MB/s that a scale reaches at least: less is nothing to look at."""
WITH_AXIS = 2
"""Rows of a track from which on an axis stands below."""
TALL = 3
"""Rows of a track from which on the end of its scale stands beside it."""


def draw(resources: Resources, width: int, height: int, cursor: int | None = None) -> list[Row]:
    """Tracks in as many rows, the first ones in one more; ``cursor`` is a cell of the charts whose
    values are shown.
    """
    if not resources.tracks or height < 1:
        return say("Known once the machine has been looked at twice.", width)
    tracks = resources.tracks[:height]
    axis = (height - 1) // len(tracks) >= WITH_AXIS
    track_height, left_over = divmod(height - axis, len(tracks))
    cells = max(width - LABEL - FIGURE, 1)
    if cursor is not None:
        cursor = min(max(cursor, 0), cells - 1)
    rows: list[Row] = []
    for index, track in enumerate(tracks):
        rows += _track(track, cells, track_height + (index < left_over), cursor)
    if axis:
        rows.append(_axis(resources, cells, cursor))
    return rows


def _track(track: Track, cells: int, height: int, cursor: int | None) -> list[Row]:
    if numbers.known(track.top):
        top = track.top
    else:
        top = numbers.nice_ceiling(_highest(track))
    chart = braille.area_rows(track.values, cells, height, top)
    index = len(track.values) - 1
    if cursor is not None:
        index = round(cursor / max(cells - 1, 1) * (len(track.values) - 1))
    rows: list[Row] = []
    for y, text in enumerate(chart):
        row: Row = [(left(track.name if y == 0 else "", LABEL), "muted")]
        if y == 0:
            figure = _figure(track, index)
        else:
            figure = _scale(track, top, y, height)
        row.append((right(figure, FIGURE - 2) + "  ", "text" if y == 0 else "muted"))
        rows.append([*row, *_with_cursor(text, track.style, cursor)])
    return rows


def _with_cursor(text: str, style: str, cursor: int | None) -> Row:
    if cursor is None:
        return [(text, style)]
    return [(text[:cursor], style), ("│", "accent"), (text[cursor + 1 :], style)]


def _figure(track: Track, place: int) -> str:
    value = track.values[place]
    if not numbers.known(value):
        return numbers.NONE
    number = numbers.gib(value) if track.unit == "GiB" else f"{value:,.0f}"
    if track.unit == "MB/s" and value < 9.5:
        number = f"{value:.1f}"
    return f"{number} {track.unit}"


def _scale(track: Track, top: float, y: int, height: int) -> str:
    if y != 1 or height < TALL:
        return ""
    word = "of" if numbers.known(track.top) else "to"
    return f"{word} {top:,.1f}".removesuffix(".0") if top >= 10 else f"{word} {top:.2g}"


def _highest(track: Track) -> float:
    least = LEAST_RATE if track.unit == "MB/s" else 0.0
    return max([least, *(value for value in track.values if value == value)]) or 1.0


def _axis(resources: Resources, cells: int, cursor: int | None) -> Row:
    first, last = numbers.clock(resources.t_s[0]), numbers.clock(resources.t_s[-1])
    row: Row = [(" " * (LABEL + FIGURE), "")]
    if cursor is None or cells < 24:
        return [*row, (first + right(last, cells - len(first)), "muted")]
    here = numbers.clock(resources.t_s[-1] * cursor / max(cells - 1, 1))
    x = min(max(cursor - len(here) // 2, len(first) + 1), cells - len(last) - len(here) - 1)
    line = first.ljust(x) + here
    return [
        *row,
        (line[:x], "muted"),
        (here, "bold accent"),
        (right(last, cells - len(line)), "muted"),
    ]


def predicted(prediction: Prediction, width: int) -> Row:
    """``predicted 41.2, measured 41.0 (-0.5 %)``, a GPU's peak allocated; on a CPU a GPU's need."""
    by = f"{prediction.tier} tier" + (", calibrated" if prediction.calibrated else "")
    off = prediction.off_pct
    if off is None or prediction.measured_gib is None:
        row: Row = [
            ("on a GPU ", "muted"),
            (f"{numbers.gib(prediction.device_total_gib)} GiB", "text"),
            (f" predicted, {by}{_before(prediction, prediction.quick_total_gib)}", "muted"),
        ]
        return clip(row, width)
    row = [
        ("predicted ", "muted"),
        (numbers.gib(prediction.allocated_gib), "text"),
        (", measured ", "muted"),
    ]
    row += [
        (numbers.gib(prediction.measured_gib), "text"),
        (f" ({off:+.1f} %)", "muted" if abs(off) < 10 else "high"),
    ]
    return clip(
        [*row, (f", {by}{_before(prediction, prediction.quick_allocated_gib)}", "muted")], width
    )


def _before(prediction: Prediction, quick_gib: float) -> str:
    """What was predicted before the trace: ``; 25.4 by the formula tier``."""
    if prediction.quick:
        return f"; {numbers.gib(quick_gib)} by the {prediction.quick} tier"
    return ""


class HistoryPanel(Panel, drawn=("cursor",)):
    """Panel 2."""

    BINDINGS: ClassVar[list[BindingType]] = [*of_panel("history")]
    cursor: reactive[int | None] = reactive(None, repaint=False)
    """Cell of the charts under the pointer or the keys' cursor; None: the newest values."""

    def note(self, snapshot: Snapshot) -> Row:
        resources = snapshot.panels.get("history", Resources())
        if snapshot.summary.gpus_added:
            return [(GPUS_ADDED, "accent")]
        if not resources.t_s:
            return []
        span: Row = [(f"{numbers.clock(resources.t_s[-1])} of the run", "muted")]
        if self.has_focus and (self.zoomed or snapshot.position is None):
            span += [("  ← →", "accent"), (" time cursor", "muted")]
        if snapshot.prediction is None:
            return span
        text = predicted(snapshot.prediction, self.size.width)
        if self.size.width > 100:
            return [*text, ("  ·  ", "muted"), *span]
        return span

    def content(self, snapshot: Snapshot, width: int, height: int) -> list[Row]:
        resources = snapshot.panels.get("history", Resources())
        rows = draw(resources, width, height, self.cursor)
        if snapshot.prediction is not None and len(rows) < height and self.size.width <= 100:
            rows.append(predicted(snapshot.prediction, width))
        return rows

    def move_cursor(self, cells: int) -> None:
        """Move the time cursor; it begins at the newest value."""
        width = self.inside(*self.size)[0] - LABEL - FIGURE
        here = width - 1 if self.cursor is None else self.cursor
        self.cursor = min(max(here + cells, 0), width - 1)

    @property
    def zoomed(self) -> bool:
        """Whether it has the whole screen: the arrow keys are its own then, in a replay too."""
        return self.id is not None and getattr(self.parent, "zoomed", None) == self.id

    def action_earlier(self) -> None:
        self._arrow(-1, "app.seek_back")

    def action_later(self) -> None:
        self._arrow(1, "app.seek_forward")

    def _arrow(self, cells: int, seek: str) -> None:
        """Move the time cursor; beside other panels the arrows of a replay seek."""
        if self.snapshot is not None and self.snapshot.position is not None and not self.zoomed:
            self.app.call_later(self.screen.run_action, seek)
        else:
            self.move_cursor(cells)

    def on_mouse_move(self, event: MouseMove) -> None:
        self.cursor = max(event.x - LABEL - FIGURE - (2 if self.boxed else 0), 0)

    def on_leave(self, _event: Leave) -> None:
        self.cursor = None
