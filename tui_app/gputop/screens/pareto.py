"""Step time against memory of every configuration on the Pareto front, as a plot."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Static
from textual_plotext import PlotextPlot

from gputop.render.plan import MARKS, PICK
from gputop.screens.dialog import CSS, Dialog
from gputop.widgets.fitted_plot import FittedPlot
from gputop.widgets.plot_colours import colour, follow_theme

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gputop.feed.planning import Planned
    from gputop_analysis.planner.choices import Choice

TICKS = 6
AROUND = 4
"""Rows of a plot that are its frame, the labels below it and what they mean."""
_FITS, _FRONT, _HERE = "·", "●", "◆"


class Marker(NamedTuple):
    """What a glyph of the plot stands for."""

    glyph: str
    role: str
    words: str
    points: Sequence[Choice]


class ParetoDialog(Dialog[None]):
    """Drawn by plotext: on opening and at a change of size, so its cost does not matter."""

    DEFAULT_CSS = (
        CSS.format(name="ParetoDialog", width="90%")
        + """
    ParetoDialog > .box { height: 90%; }
    ParetoDialog.-narrow > .box { height: 100%; max-height: 100%; padding: 0 1; }
    ParetoDialog PlotextPlot { height: 1fr; }
    ParetoDialog #upwards, ParetoDialog #key { color: $role-muted; height: auto; }
    """
    )
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,p,enter", "dismiss", show=False)]

    def __init__(
        self, planned: Planned, here: Choice | None, marked: Sequence[Choice], base_s: float = 0.0
    ):
        super().__init__()
        self._markers = markers(planned, here, marked)
        self._base_s = base_s

    def compose(self) -> ComposeResult:
        with Vertical(classes="box") as box:
            box.border_title = "Memory against step time"
            box.border_subtitle = "esc back"
            yield Static("GiB of a GPU", id="upwards", markup=False)
            yield FittedPlot(self.draw)
            yield Static(key(self._markers, self._base_s), id="key", markup=False)

    def draw(self) -> None:
        """Everything anew, in the room that there is."""
        widget = self.query_one(PlotextPlot)
        follow_theme(widget)
        plot = widget.plt
        plot.clear_data()
        plot.xlabel("step, seconds")
        if shown := [choice for marker in self._markers for choice in marker.points]:
            steps = [choice.step_s for choice in shown]
            memory = [choice.reserved_gib for choice in shown]
            steps += [self._base_s] * bool(self._base_s)
            _axis(plot.xticks, plot.xlim, even_ticks(min(steps), max(steps)))
            rows = widget.size.height - AROUND
            at = even_ticks(min(memory), max(memory), max(min(TICKS, rows // 2), 2))
            _axis(plot.yticks, plot.ylim, at, top_of(at, rows))
        for marker in self._markers:
            x = [choice.step_s for choice in marker.points]
            y = [choice.reserved_gib for choice in marker.points]
            plot.scatter(x, y, marker=marker.glyph, color=colour(self.app, marker.role))
        if self._base_s:
            plot.vline(self._base_s)
        widget.refresh()


def markers(planned: Planned, here: Choice | None, marked: Sequence[Choice]) -> list[Marker]:
    """All that is drawn, what lies on top last."""
    count = len(planned.choices)
    fits = f"the {count:,} that {'fit' if planned.fitting else 'may fit'}"
    if count < planned.fitting:
        fits = f"the first {count:,} of {planned.fitting:,} that fit"
    drawn = [
        Marker(_FITS, "muted", fits, planned.choices),
        Marker(_FRONT, "accent", "no other is better in both", planned.pareto),
    ]
    pick = planned.pick or planned.choices[0]
    drawn.append(Marker(PICK, "good", "the one to run", [pick]))
    if here is not None and here.index not in {pick.index, *(choice.index for choice in marked)}:
        drawn.append(Marker(_HERE, "high", f"chosen: {here.name}", [here]))
    drawn += [
        Marker(glyph, "high", choice.name, [choice])
        for glyph, choice in zip(MARKS, marked, strict=False)
    ]
    return drawn


def key(found: Sequence[Marker], base_s: float) -> str:
    """What the glyphs stand for; apart by bars, for a dot is one of them."""
    items = [f"{marker.glyph} {marker.words}" for marker in found]
    return " | ".join(items + ["upright line: the run's step"] * bool(base_s))


def top_of(at: Sequence[float], rows: int) -> float:
    """Upper end of an axis of so many rows whose ticks all lie as many rows apart."""
    step = at[1] - at[0]
    apart = max((rows - 1) // (len(at) - 1), 1)
    return max(at[0] + step * (rows - 1) / apart, at[-1])


def even_ticks(low: float, high: float, most: int = TICKS) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten, at most ``most + 1`` of them, which enclose
    both amounts.
    """
    span = (high - low) or abs(high) or 1.0
    power = 10.0 ** math.floor(math.log10(span / most))
    step = next(power * times for times in (1, 2, 5, 10, 20) if span <= power * times * (most - 1))
    return [step * count for count in range(math.floor(low / step), math.ceil(high / step) + 1)]


def _axis(
    place: Callable[[list[float], list[str]], object],
    limit: Callable[[float, float], object],
    at: list[float],
    top: float | None = None,
) -> None:
    place(at, [f"{tick:g}" for tick in at])
    limit(at[0], at[-1] if top is None else top)
