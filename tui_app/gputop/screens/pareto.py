"""Step time against memory of every configuration on the Pareto front, as a plot."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual_plotext import PlotextPlot

from gputop.screens.dialog import CSS
from gputop.screens.typed import Typed
from gputop.widgets.plot_colours import colour, follow_theme

if TYPE_CHECKING:
    from gputop_analysis.planner.choices import Choice

_FITS, _FRONT = "·", "●"


class ParetoDialog(Typed, ModalScreen[None]):
    """Drawn by plotext: once on opening, so its cost does not matter."""

    DEFAULT_CSS = (
        CSS.format(name="ParetoDialog", width=110)
        + """
    ParetoDialog > .box { height: 90%; }
    ParetoDialog PlotextPlot { height: 1fr; }
    """
    )
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,p,enter", "dismiss", show=False)]

    def __init__(self, front: tuple[Choice, ...], all_of: tuple[Choice, ...], base_s: float = 0.0):
        super().__init__()
        self._front = front
        self._all = all_of
        self._base_s = base_s

    def compose(self) -> ComposeResult:
        with Vertical(classes="box") as box:
            box.border_title = "Step time against memory"
            box.border_subtitle = f"{_FITS} fits · {_FRONT} no other is better in both · esc back"
            yield PlotextPlot()

    def on_mount(self) -> None:
        widget = self.query_one(PlotextPlot)
        follow_theme(widget)
        plot = widget.plt
        plot.xlabel("step, seconds")
        plot.ylabel("GiB of a GPU")
        self._scatter(self._all, _FITS, "muted")
        self._scatter(self._front, _FRONT, "accent")
        if self._base_s:
            plot.vline(self._base_s)

    def _scatter(self, shown: tuple[Choice, ...], marker: str, role: str) -> None:
        x, y = [choice.step_s for choice in shown], [choice.reserved_gib for choice in shown]
        plot = self.query_one(PlotextPlot).plt
        plot.scatter(x, y, marker=marker, color=colour(self.app, role))
