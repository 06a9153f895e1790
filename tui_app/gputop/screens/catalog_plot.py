"""Rent against speed or memory of GPUs, as a plot."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from math import log10
from string import ascii_lowercase
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Static
from textual_plotext import PlotextPlot

from gputop.feed.catalog import AXES, GpuPoint, dollars, front, points
from gputop.render.catalog import MARKS
from gputop.render.rows import left, right
from gputop.screens.dialog import CSS, Dialog, text_columns
from gputop.widgets.fitted_plot import FittedPlot
from gputop.widgets.plot_colours import colour, follow_theme
from gputop_analysis.catalog.listing import Listed

WIDTH = 110
"""Cells of the dialog."""
BELOW = 3
"""Rows below the plot's own: its axis, labels and what they mean."""
FRAME = 2
LEAST_ROWS = 8
"""Of a plot: in fewer, places say nothing and a list is shown."""
RENT = 8
"""Cells of a rent in the list, and of the rate or memory before it."""
LABEL = 6
"""Cells of a label below the plot, with the gap to the next."""
_UNBROKEN = "\N{NO-BREAK SPACE}"


class CatalogPlot(Dialog[None]):
    """Drawn by plotext on opening, at a change of axis and of size: its cost does not matter."""

    DEFAULT_CSS = (
        CSS.format(name="CatalogPlot", width=WIDTH)
        + """
    CatalogPlot > .box { height: 90%; }
    CatalogPlot PlotextPlot { height: 1fr; }
    CatalogPlot #upwards { color: $role-muted; }
    CatalogPlot #named { height: auto; max-height: 7; color: $role-muted; }
    CatalogPlot.listed #upwards, CatalogPlot.listed PlotextPlot { display: none; }
    CatalogPlot.listed #named { max-height: 100%; }
    """
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,p,enter", "dismiss", show=False),
        Binding("m", "next_axis", show=False),
    ]

    def __init__(self, rows: Sequence[Listed], marked: Sequence[str] = ()):
        super().__init__()
        self._rows = rows
        self._marked = marked
        self.axis = AXES[0]

    def compose(self) -> ComposeResult:
        with Vertical(classes="box") as box:
            box.border_subtitle = "m other axis · esc back"
            yield Static("", id="upwards", markup=False)
            yield FittedPlot(self.draw)
            yield Static("", id="named", markup=False)

    def action_next_axis(self) -> None:
        self.axis = AXES[(AXES.index(self.axis) + 1) % len(AXES)]
        self.draw()

    def draw(self) -> None:
        """Everything anew, in the room that there is."""
        points_ = points(self._rows, self.axis.name)
        unpriced = len(self._rows) - len(points_)
        without = f" · {unpriced} without a known rent" if unpriced else ""
        self.query_one(".box").border_title = f"Rent against {self.axis.label}{without}"
        named = letters(points_, self._marked)
        width = text_columns(self.app.size.width, WIDTH)
        unit = self.axis.label.split()[-1]
        best = textwrap.fill(
            f"Small letters: no other gives more {unit} for the same rent or less.", width
        )
        text = f"{legend(named, width)}\n{best}"
        rows = int(self.app.size.height * 0.9) - 2 * FRAME - 1 - len(text.splitlines())
        is_list = rows - BELOW - FRAME < LEAST_ROWS
        self.set_class(is_list, "listed")
        if is_list:
            text = f"{listing(named, unit, width)}\n{best}"
        else:
            self._plot(points_, named)
        self.query_one("#named", Static).update(text)

    def on_resize(self) -> None:
        self.draw()  # the plot, which tells its own size, may not be shown

    def _plot(self, found: Sequence[GpuPoint], named: Sequence[tuple[str, GpuPoint]]) -> None:
        widget = self.query_one(PlotextPlot)
        follow_theme(widget)
        plot = widget.plt
        plot.clear_data()
        plot.xlabel("$/h of one GPU")
        self.query_one("#upwards", Static).update(self.axis.label)
        room = widget.size
        rows = room.height - BELOW
        if found:
            rents, values = [p.usd_per_hour for p in found], [p.value for p in found]
            _axis(plot.xticks, plot.xlim, ticks(min(rents), max(rents), room.width // LABEL))
            _axis(plot.yticks, plot.ylim, ticks(min(values), max(values), rows // 2))
            cell = (
                _span(rents, room.width // LABEL) / max(room.width - 2 * LABEL, 1),
                _span(values, rows // 2) / max(rows - FRAME, 1),
            )
            self._scatter(found, "·", "muted")
            placed = apart([_place(point) for _, point in named], cell)
            for (letter, _), place in zip(named, placed, strict=True):
                self._mark([place], letter, "good" if letter in MARKS else "accent")
        widget.refresh()

    def _scatter(self, found: Sequence[GpuPoint], marker: str, role: str) -> None:
        self._mark([_place(point) for point in found], marker, role)

    def _mark(self, places: Sequence[tuple[float, float]], marker: str, role: str) -> None:
        plot = self.query_one(PlotextPlot).plt
        x, y = zip(*places, strict=True)
        plot.scatter(list(x), list(y), marker=marker, color=colour(self.app, role))


def _place(point: GpuPoint) -> tuple[float, float]:
    return log10(point.usd_per_hour), log10(point.value)


def _span(amounts: Sequence[float], room: int) -> float:
    """Of an axis, in powers of ten."""
    at = ticks(min(amounts), max(amounts), room)
    return log10(at[-1]) - log10(at[0])


def apart(
    places: Sequence[tuple[float, float]], cell: tuple[float, float]
) -> list[tuple[float, float]]:
    """Each place, or one some cells to the right of it where a letter would hide another one."""
    free: list[tuple[float, float]] = []
    for x, y in places:
        while any(abs(x - at) < cell[0] and abs(y - height) < cell[1] for at, height in free):
            x += cell[0] or 1.0
        free.append((x, y))
    return free


def listing(named: Sequence[tuple[str, GpuPoint]], unit: str, width: int) -> str:
    """A line each: letter, name, rate or memory, rent; marked ones first."""
    name = width - 2 - 2 * RENT
    lines = ["  " + left("", name) + right(unit, RENT) + right("$/h", RENT)]
    for letter, point in sorted(named, key=lambda one: one[0] not in MARKS):
        figures = right(f"{point.value:,.0f}", RENT) + right(dollars(point.usd_per_hour), RENT)
        lines.append(f"{letter} {left(point.name, name)}{figures}")
    return "\n".join(lines)


def letters(points: Sequence[GpuPoint], marked: Sequence[str]) -> list[tuple[str, GpuPoint]]:
    """What is named: marked ones by their marks' letters, those that none beats by small ones."""
    by_name = {point.name: point for point in points}
    named = [(MARKS[i], by_name[name]) for i, name in enumerate(marked) if name in by_name]
    best = [point for point in front(points) if point.name not in marked]
    return [*zip(ascii_lowercase, best, strict=False), *named]


def legend(named: Sequence[tuple[str, GpuPoint]], width: int) -> str:
    """Letters and names in lines of at most ``width`` cells; no name is broken."""
    text = "   ".join(f"{letter} {point.name}".replace(" ", _UNBROKEN) for letter, point in named)
    return textwrap.fill(text, width, break_on_hyphens=False).replace(_UNBROKEN, " ")


def ticks(low: float, high: float, room: int = 100) -> list[float]:
    """1, 2 and 5 times powers of ten between two amounts, both ends rounded outwards; where there
    is no ``room`` for so many, only powers of ten, each second one, or the ends: labels of one row
    would hide each other.
    """
    chosen: list[float] = []
    for steps, every in (((1, 2, 5), 1), ((1,), 1), ((1,), 2)):
        powers = range(-4, 8, every)
        ladder = [step * 10.0**power for power in powers for step in steps]
        below = [tick for tick in ladder if tick <= low][-1:]
        above = [tick for tick in ladder if tick >= high][:1]
        chosen = sorted({*below, *(tick for tick in ladder if low < tick < high), *above})
        if len(chosen) <= room:
            return chosen
    return [chosen[0], chosen[-1]]


def _axis(
    place: Callable[[list[float], list[str]], object],
    limit: Callable[[float, float], object],
    at: list[float],
) -> None:
    """A logarithmic axis: rents and rates lie over two orders of magnitude."""
    place([log10(tick) for tick in at], [f"{tick:,.10g}" for tick in at])
    limit(log10(at[0]), log10(at[-1]))
