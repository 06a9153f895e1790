"""The loss over the whole run."""

from __future__ import annotations

from gputop.feed.plots import Chart, PlotLine
from gputop.feed.snapshot import Curve, Snapshot
from gputop.render import chart, numbers
from gputop.render.rows import Row, say
from gputop.widgets.header import broken_loss, broken_since
from gputop.widgets.panel import Panel


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
    last = float(steps - 1 if steps else curve.steps[-1])
    line = PlotLine("loss", curve.steps, curve.values)
    return chart.draw(Chart("loss", "", (line,)), width, height, (curve.steps[0], last))


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
