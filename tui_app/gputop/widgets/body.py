"""The place of the panels: a container that lays them out as ``plan`` says."""

from __future__ import annotations

from textual.containers import Container
from textual.geometry import NULL_OFFSET, Region, Size, Spacing
from textual.layout import ArrangeResult, Layout, WidgetPlacement
from textual.widget import Widget

from gputop.feed.snapshot import Snapshot
from gputop.panels import Request, panel_ids
from gputop.widgets import plan

EMPTY_WHERE_UNREADABLE = frozenset(["findings", "ranks", "history", "loss"])
"""Panels that have nothing to say where no record can be read."""


class _PlannedLayout(Layout):
    """Asks the body for its boxes."""

    name = "planned"

    def arrange(
        self, parent: Widget, children: list[Widget], size: Size, greedy: bool = True
    ) -> ArrangeResult:
        assert isinstance(parent, Body)
        boxes = parent.boxes(size)
        spacing = Spacing()
        return [
            WidgetPlacement(Region(b.x, b.y, b.width, b.height), NULL_OFFSET, spacing, child)
            for child in children
            if (b := boxes.get(child.id or "")) is not None
        ]


class Body(Container):
    """Holds the panels; knows which are zoomed, hidden or switched to."""

    DEFAULT_CSS = "Body { width: 1fr; height: 1fr; overflow: hidden hidden; }"

    def __init__(self, *panels: Widget, id: str | None = None):
        super().__init__(*panels, id=id)
        self.zoomed: str | None = None
        self.hidden: frozenset[str] = frozenset()
        self.switched = "output"
        self._structure = (1, 0, 1, 0, False, False)
        self._planned = _PlannedLayout()

    @property
    def layout(self) -> Layout:
        return self._planned

    def boxes(self, size: Size) -> dict[str, plan.Box]:
        """Where each visible panel lies."""
        ranks, gpus, hosts, findings, begun, unreadable = self._structure
        return plan.plan(
            Request(
                width=size.width,
                height=size.height,
                ranks=ranks,
                gpus=gpus,
                hosts=hosts,
                findings=findings,
                begun=begun,
                hidden=self.hidden | (EMPTY_WHERE_UNREADABLE if unreadable else frozenset()),
                zoomed=self.zoomed,
                switched=self.switched,
                layout=plan.layout_of_screen(*self.app.size),
            )
        )

    def visible_panels(self) -> list[str]:
        """Panels on the screen, in reading order of the numbers."""
        boxes = self.boxes(self.size)
        return [name for name in panel_ids() if name in boxes]

    def fit(self, snapshot: Snapshot) -> None:
        """Lay out anew if the run's structure has changed; numbers alone never move a panel."""
        run = snapshot.summary
        counts = (
            max(len(run.ranks), 1),
            len(run.gpus),
            max(len(run.hosts), 1),
            min(len(snapshot.findings), 6),
        )
        structure = (*counts, run.steps > 0, snapshot.unreadable)
        if structure != self._structure:
            self._structure = structure
            self._arrange_anew()

    def set(
        self,
        *,
        zoomed: str | None = None,
        hidden: frozenset[str] | None = None,
        switched: str | None = None,
    ) -> None:
        """Change what is shown. ``zoomed`` of None means that none is."""
        self.zoomed = zoomed
        self.hidden = self.hidden if hidden is None else hidden
        self.switched = switched or self.switched
        self._arrange_anew()

    def _arrange_anew(self) -> None:
        """Textual forgets an arrangement only when a child asks for a layout, so a child asks."""
        self.children[0].refresh(layout=True)
