"""The table of panels of the main screen: keys, help, palette, layouts, tabs and what Enter opens
are made from it.

A panel is a row here and a widget (``widgets.panel.Panel``) with a ``content``. The table is plain
data: widgets and readers are imported when the main screen is made.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from textual.widget import Widget


class Want(NamedTuple):
    """Rows that a panel asks for, title included."""

    least: int
    enough: int
    """More than this is of no use, except to panels that ``stretch``."""
    stretch: int = 0


class Request(NamedTuple):
    """All that the layout depends on: only structure (how many ranks), no flickering number."""

    width: int
    height: int
    ranks: int = 1
    gpus: int = 0
    hosts: int = 1
    findings: int = 0
    begun: bool = True
    """A step has ended. Until then nothing is to break down, and the output has the room."""
    hidden: frozenset[str] = frozenset()
    zoomed: str | None = None
    switched: str = "output"
    layout: str = ""
    """``compact``, ``normal`` or ``wide`` where the screen decides; empty: by size."""


class PanelSpec(NamedTuple):
    """One panel."""

    id: str
    """Names the widget, and the action that goes to it."""
    keys: str
    """Textual key names, comma separated; the first is its number."""
    title: str
    label: str
    """One word for the footer and the tabs."""
    description: str
    """One sentence for help and palette."""
    widget: str
    """Where its class is, as ``module:Class``."""
    rows: Callable[[Request], Want]
    compact: tuple[int, int]
    """Band from the top and place in it, on a small terminal; panels may share a place."""
    normal: tuple[int, int]
    """The same from 100x32 on."""
    wide: tuple[int, int]
    """The same from 160 columns on."""
    opens: str = ""
    """The action that Enter takes on it; none gives it the whole screen."""
    footer: int = 0
    """Place in the footer by importance, 1 first; 0: not in the footer."""
    reads: str = ""
    """``module:function`` of a record for ``Snapshot.panels[id]``, which no other panel shows."""

    @property
    def number(self) -> str:
        """The key that stands before its title."""
        return self.keys.split(",")[0]

    @property
    def tab(self) -> bool:
        """Whether it shares its place with others on a small terminal."""
        return sum(panel.compact == self.compact for panel in PANELS) > 1

    def make(self) -> Widget:
        """Import its class and make the widget."""
        return imported(self.widget)(id=self.id)


def imported(place: str) -> Any:
    """The object at ``module:name``."""
    module, name = place.split(":")
    return getattr(importlib.import_module(module), name)


FRAME = 2
"""Rows that a frame takes."""
TALL = 26
"""Rows of a body from which on all ranks are shown before others grow."""
LISTED = 11
"""Rows of the list beside a heat map."""
GRID_FROM = 25
"""Ranks from which on they are drawn as a heat map."""


def _breakdown_rows(request: Request) -> Want:
    """Of a start enough for every milestone, of steps for a chart."""
    return Want(6, 14, 2) if request.begun else Want(10, 11)


def _ranks_rows(request: Request) -> Want:
    """Heading, a row a rank and the host, or the rows of the heat map."""
    if request.ranks < GRID_FROM:
        shown = 1 + max(request.ranks, request.gpus)
    else:
        side = math.ceil(math.sqrt(request.ranks))
        wide = max(side, request.width * 2 // 5)  # beside the list
        shown = max(math.ceil(request.ranks / wide / 2), LISTED)
    rows = FRAME + shown + min(request.hosts, 2)
    if request.height >= TALL:
        minimum = min(rows, 5 * request.height // 8)
    else:
        minimum = min(rows, 6)
    return Want(minimum, rows)


def _findings_rows(request: Request) -> Want:
    return Want(3, 1 + max(2, 2 * request.findings))


PANELS: list[PanelSpec] = [
    PanelSpec(
        id="breakdown",
        keys="1",
        title="Where a step goes",
        label="step",
        description="Go to where a step goes.",
        widget="gputop.widgets.breakdown:Breakdown",
        rows=_breakdown_rows,
        compact=(0, 0),
        normal=(0, 0),
        wide=(0, 0),
        opens="budget",
        reads="gputop.feed.starting:starting",
    ),
    PanelSpec(
        id="history",
        keys="2,m,4,g",
        title="History",
        label="history",
        description="Go to memory, GPU and host over the run.",
        widget="gputop.widgets.history:HistoryPanel",
        rows=lambda _: Want(5, 12, 1),
        compact=(2, 0),
        normal=(2, 1),
        wide=(2, 1),
        reads="gputop.feed.resources:resources",
    ),
    PanelSpec(
        id="ranks",
        keys="3,r",
        title="Ranks",
        label="ranks",
        description="Go to the ranks and their GPUs.",
        widget="gputop.widgets.ranks:Ranks",
        rows=_ranks_rows,
        compact=(2, 0),
        normal=(1, 0),
        wide=(1, 0),
        opens="all_ranks",
    ),
    PanelSpec(
        id="findings",
        keys="5,f",
        title="Findings",
        label="findings",
        description="Go to the findings.",
        widget="gputop.widgets.findings:Findings",
        rows=_findings_rows,
        compact=(1, 0),
        normal=(0, 1),
        wide=(0, 1),
        footer=3,
    ),
    PanelSpec(
        id="output",
        keys="6,o",
        title="Output",
        label="output",
        description="Go to the command's output.",
        widget="gputop.widgets.output:Output",
        rows=lambda _: Want(4, 12, 1),
        compact=(2, 0),
        normal=(2, 0),
        wide=(2, 0),
        footer=13,
    ),
    PanelSpec(
        id="loss",
        keys="7",
        title="Loss",
        label="loss",
        description="Go to the loss curve.",
        widget="gputop.widgets.loss:Loss",
        rows=lambda _: Want(5, 10, 1),
        compact=(2, 0),
        normal=(2, 1),
        wide=(2, 2),
        opens="numerics",
        reads="gputop.feed.curves:loss_curve",
    ),
]


def panel(id: str | None) -> PanelSpec | None:
    """The row of that panel, None if there is none."""
    return next((spec for spec in PANELS if spec.id == id), None)


def panel_ids() -> list[str]:
    """Every panel, by number."""
    return [spec.id for spec in PANELS]
