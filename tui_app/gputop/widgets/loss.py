"""The loss over the whole run."""

from __future__ import annotations

from gputop.feed.snapshot import Curve, Snapshot
from gputop.render import braille, numbers
from gputop.render.rows import Row, right, say
from gputop.widgets.header import broken_loss, broken_since
from gputop.widgets.panel import Panel

AXIS = 8


def covered(curve: Curve, steps: int, cells: int) -> int:
    """Cells, of those that ``steps`` of a run take, up to the last loss that is a number."""
    last = curve.steps[-1] if curve.steps else 0
    return min(max(round(cells * last / max(steps - 1, 1)), 1), cells)


def draw(curve: Curve, width: int, height: int, steps: int = 0) -> list[Row]:
    """A line with its range at the left and its steps below.

    Args:
        curve: the losses that are numbers.
        width: in cells.
        height: in rows.
        steps: of the run, where the newest ones have no such loss: they are left blank.
    """
    if len(curve.values) < 2:
        return say(
            "The loss is not known: it is read from the tensor that backward is called on.", width
        )
    if height < 3:
        return [[("loss ", "muted"), (numbers.scalar(curve.values[-1]), "text")]]
    ordered = sorted(curve.values)
    low, high = ordered[0], ordered[min(len(ordered) - 1, int(0.995 * len(ordered)))]
    cells = width - AXIS
    drawn = covered(curve, steps, cells) if steps else cells
    ends = numbers.alike((low, high), AXIS - 1)
    rows: list[Row] = []
    for y, text in enumerate(braille.line(curve.values, drawn, height - 1, low, high)):
        text_ = {0: ends[1], height - 2: ends[0]}.get(y, "")
        rows.append([(right(text_, AXIS - 1) + " ", "muted"), (text, "allocated")])
    first, last = f"step {curve.steps[0]:,}", f"{steps - 1 if steps else curve.steps[-1]:,}"
    rows.append([(" " * AXIS + first + right(last, max(cells - len(first), len(last))), "muted")])
    return rows


def loss_of(snapshot: Snapshot) -> Curve:
    """The loss that the table of panels has read."""
    return snapshot.panels.get("loss", Curve())


class Loss(Panel):
    """Panel 7."""

    def note(self, snapshot: Snapshot) -> Row:
        values = loss_of(snapshot).values
        if broken := broken_since(snapshot):
            return [(broken, "bold critical")]
        if values:
            return [("now ", "muted"), (numbers.scalar(values[-1]), "text")]
        return []

    def content(self, snapshot: Snapshot, width: int, height: int) -> list[Row]:
        steps = snapshot.summary.steps if broken_loss(snapshot) else 0
        return draw(loss_of(snapshot), width, height, steps)
