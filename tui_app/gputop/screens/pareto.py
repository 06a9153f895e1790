"""Step time against memory of every configuration on the Pareto front, as a plot."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Static
from textual_plotext import PlotextPlot

from gputop.screens.dialog import CSS
from gputop.screens.typed import Typed
from gputop.widgets.plot_colours import colour, follow_theme

if TYPE_CHECKING:
    from gputop_analysis.planner.choices import Choice

TICKS = 6
_FITS, _FRONT = "·", "●"


class ParetoDialog(Typed, ModalScreen[None]):
    """Drawn by plotext: once on opening, so its cost does not matter."""

    DEFAULT_CSS = (
        CSS.format(name="ParetoDialog", width=110)
        + """
    ParetoDialog > .box { height: 90%; }
    ParetoDialog PlotextPlot { height: 1fr; }
    ParetoDialog #upwards { color: $role-muted; }
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
            yield Static("GiB of a GPU", id="upwards", markup=False)
            yield PlotextPlot()

    def on_mount(self) -> None:
        widget = self.query_one(PlotextPlot)
        follow_theme(widget)
        plot = widget.plt
        plot.xlabel("step, seconds")
        if shown := (*self._all, *self._front):
            steps = [choice.step_s for choice in shown]
            memory = [choice.reserved_gib for choice in shown]
            steps += [self._base_s] * bool(self._base_s)
            _axis(plot.xticks, plot.xlim, even_ticks(min(steps), max(steps)))
            _axis(plot.yticks, plot.ylim, even_ticks(min(memory), max(memory)))
        self._scatter(self._all, _FITS, "muted")
        self._scatter(self._front, _FRONT, "accent")
        if self._base_s:
            plot.vline(self._base_s)

    def _scatter(self, shown: tuple[Choice, ...], marker: str, role: str) -> None:
        x, y = [choice.step_s for choice in shown], [choice.reserved_gib for choice in shown]
        plot = self.query_one(PlotextPlot).plt
        plot.scatter(x, y, marker=marker, color=colour(self.app, role))


def even_ticks(low: float, high: float) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten, at most ``TICKS + 1`` of them, which enclose
    both amounts.
    """
    span = (high - low) or abs(high) or 1.0
    power = 10.0 ** math.floor(math.log10(span / TICKS))
    step = next(power * times for times in (1, 2, 5, 10, 20) if span <= power * times * (TICKS - 1))
    return [step * count for count in range(math.floor(low / step), math.ceil(high / step) + 1)]


def _axis(
    place: Callable[[list[float], list[str]], object],
    limit: Callable[[float, float], object],
    at: list[float],
) -> None:
    place(at, [f"{tick:g}" for tick in at])
    limit(at[0], at[-1])
