"""The catalog screen: GPUs in a table, facts of some below, the way to estimator, planner."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.events import Key
from textual.screen import Screen

from gputop.feed.catalog import CatalogView, first_view
from gputop.feed.run_base import RunBase, RunBaseLoader
from gputop.feed.snapshot import Snapshot
from gputop.messages import PageClosed, ScreenAsked
from gputop.screens.moving import Moving
from gputop.screens.page import Reads, bindings
from gputop.screens.typed import Typed
from gputop.screens.typed_text import typed_text
from gputop.widgets.catalog_panes import CatalogFacts, CatalogTable, CatalogTitle
from gputop.widgets.footer import Footer

if TYPE_CHECKING:
    from gputop_analysis.catalog.listing import Listed


BESIDE_FROM = 160
"""Columns from which on the facts stand beside the table, which is as wide as it gets."""


class CatalogScreen(Typed, Moving, Screen[None]):
    """Everything on it is packaged with gputop, but for the user's own prices."""

    NAME = "catalog"
    BINDINGS = bindings(NAME)
    DEFAULT_CSS = """
    CatalogScreen { layout: vertical; background: $background; color: $role-text; }
    CatalogScreen #title { dock: top; height: 2; }
    CatalogScreen #table { height: 1fr; }
    CatalogScreen #facts { height: 1fr; max-height: 24; }
    CatalogScreen.short #facts { display: none; }
    CatalogScreen.short.several #facts { display: block; }
    CatalogScreen.wide { layout: horizontal; }
    CatalogScreen.wide #table { width: 96; }
    CatalogScreen.wide #facts { display: block; width: 1fr; max-height: 100%; }
    CatalogScreen #footer { dock: bottom; height: 1; }
    """
    AUTO_FOCUS = "#table"

    def __init__(self, view: CatalogView | None = None, used: str = ""):
        """``used`` is the GPU that the run uses, by its driver's name: the table opens there."""
        super().__init__()
        self.view = view or first_view()
        self._used = used
        self.page = Reads(RunBaseLoader)
        self._base: RunBase | None = None
        self._typing = False

    def compose(self) -> ComposeResult:
        yield CatalogTitle(id="title")
        yield CatalogTable(id="table")
        yield CatalogFacts(id="facts")
        yield Footer("live", False, self.NAME, id="footer")

    def on_mount(self) -> None:
        from gputop_analysis.catalog.gpu_names import find_gpu

        self._show(self.view)
        used = find_gpu(self._used) if self._used else None
        if used is not None:
            self.table.follow(used.name)
            self._tell()

    def on_resize(self) -> None:
        self.set_class(self.size.height < 34, "short")
        self.set_class(self.size.width >= BESIDE_FROM, "wide")

    # ---- what the app asks of a screen above the main one

    def receive(self, snapshot: Snapshot, missed_steps: int | None) -> None:
        """The live run's job, which goes to estimator and planner with a GPU from here."""
        if isinstance(snapshot.page, RunBase) and self._base is None:
            self._base = snapshot.page
            self._tell()

    def copy_text(self) -> str:
        """The command that shows the same GPUs."""
        names = self.view.marked or ((self.table.chosen.spec.name,) if self.table.chosen else ())
        if names:
            return " ".join(["gputop catalog show", *(f'"{name}"' for name in names)])
        return ""

    # ---- what is shown

    @property
    def table(self) -> CatalogTable:
        return self.query_one(CatalogTable)

    @property
    def facts(self) -> CatalogFacts:
        return self.query_one(CatalogFacts)

    def _show(self, view: CatalogView) -> None:
        """Another view; the cursor stays on its GPU where that is still shown."""
        chosen = self.table.chosen
        self.view = self.table.view = view
        if chosen is not None:
            self.table.follow(chosen.spec.name)
        self._tell()

    def _tell(self) -> None:
        """What stands above and below the table."""
        source = f"for run {self._base.name}" if self._base else ""
        self.query_one(CatalogTitle).show(self.view, self._typing, source)
        shown = (self.table.chosen,) if self.table.chosen else ()
        several = len(self.view.marked) > 1
        if several:
            shown = tuple(self.view.compared)
        self.set_class(several, "several")
        self.facts.show(shown)
        if self.facts.has_focus and not self.facts.display:
            self.set_focus(self.table)

    # ---- moving

    def _move(self, step: int) -> None:
        if self.facts.has_focus:
            self.facts.move(step)
        else:
            self.table.move(step)
            self._tell()

    def action_next_pane(self) -> None:
        if self.facts.display:
            self.set_focus(self.table if self.facts.has_focus else self.facts, scroll_visible=False)
        else:
            self.notify("the facts have no room here: mark two with space, or enlarge the terminal")

    # ---- order, filter, marks

    def action_sort(self) -> None:
        self._show(self.view.resorted())
        self.table.move(-(10**6))
        self._tell()

    def action_filter(self) -> None:
        self._type(True)

    def _type(self, on: bool) -> None:
        self._typing = on
        self._tell()

    def on_key(self, event: Key) -> None:
        """While the filter is typed, letters go there."""
        if not self._typing:
            return
        text = typed_text(self.view.words, event)
        if text is not None:
            self._show(self.view.filtered(text))

    def action_mark(self) -> None:
        if self.table.chosen is not None:
            self._show(self.view.toggled(self.table.chosen.spec.name))

    def action_back(self) -> None:
        """One thing after the other: the filter, the marks, the screen."""
        if self._typing or self.view.words:
            self._typing = False
            self._show(self.view.filtered(""))
        elif self.view.marked:
            self._show(CatalogView(self.view.everything, self.view.sort))
        else:
            self.post_message(PageClosed())

    # ---- from a GPU on

    def action_take(self) -> None:
        """Enter: the filter is typed, or a job is to be planned on the GPU at the cursor."""
        if self._typing:
            self._type(False)
        elif self.table.chosen is not None:
            self._plan(self.table.chosen)

    def _plan(self, chosen: Listed) -> None:
        from gputop.feed.planning import first_ask
        from gputop.screens.strategy import StrategyScreen

        ask = self._base.ask if self._base else first_ask()
        self.post_message(
            ScreenAsked(StrategyScreen(ask.given("gpu", chosen.spec.name), keep=True))
        )

    def action_estimate(self) -> None:
        from gputop.feed.examples import first_setup
        from gputop.screens.estimator import EstimatorScreen

        chosen = self.table.chosen
        if chosen is None:
            return
        if not chosen.spec.runs_torch:
            self.notify(
                f"PyTorch's caching allocator does not serve the {chosen.spec.name}",
                severity="warning",
            )
            return
        setup = self._base.setup if self._base else first_setup()
        if self._base:
            source = f"from run {self._base.name}"
        else:
            source = f"on the {chosen.spec.name}"
        self.post_message(ScreenAsked(EstimatorScreen(setup, source=source, gpu=chosen.spec.name)))

    def action_plot(self) -> None:
        from gputop.screens.catalog_plot import CatalogPlot

        if self.view.shown:
            self.app.push_screen(CatalogPlot(self.view.shown, self.view.marked))

    def action_topology(self) -> None:
        from gputop.screens.topology import TopologyScreen

        if self.table.chosen is not None:
            self.post_message(ScreenAsked(TopologyScreen(self.table.chosen.spec.name)))
