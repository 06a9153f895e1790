"""An app of one main screen, and the screens that are opened above it, one at a time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from gputop.app.fed import FedApp
from gputop.app.source import AppResult
from gputop.feed.snapshot import Snapshot
from gputop.messages import RunAsked, ScreenAsked
from gputop.screens.main import MainScreen
from gputop.widgets.findings import Findings
from gputop.widgets.ranks import Ranks

if TYPE_CHECKING:
    from gputop.screens.catalog import CatalogScreen
    from gputop.screens.comparison import ComparisonScreen
    from gputop.screens.estimator import EstimatorScreen
    from gputop.screens.page import PageScreen
    from gputop.screens.runs import RunsScreen
    from gputop.screens.strategy import StrategyScreen
    from gputop.screens.topology import TopologyScreen

    Above = (
        PageScreen
        | EstimatorScreen
        | StrategyScreen
        | CatalogScreen
        | TopologyScreen
        | RunsScreen
        | ComparisonScreen
    )


class PagedApp(FedApp):
    """What a page reads, the feed loads while the page is the topmost one."""

    newest: Snapshot | None = None
    """What came last; the main screen stands still at an earlier one while it is paused."""

    @property
    def main(self) -> MainScreen:
        """The main screen, whatever lies above it."""
        screen = self.screen_stack[0]
        assert isinstance(screen, MainScreen)
        return screen

    @property
    def page_screen(self) -> Above | None:
        """The topmost screen above the main one, dialogs left out."""
        return next((s for s in reversed(self.screen_stack[1:]) if getattr(s, "NAME", "")), None)  # type: ignore[return-value]

    @property
    def top_screen(self) -> Above | MainScreen:
        """The one that is seen, dialogs left out."""
        return self.page_screen or self.main

    @property
    def screen_name(self) -> str:
        """Its name in the table of actions."""
        return "main" if self.page_screen is None else self.page_screen.NAME

    # ---- what opens one

    def on_findings_chosen(self, message: Findings.Chosen) -> None:
        from gputop.screens.evidence import EvidenceScreen

        self._open(EvidenceScreen, message.finding)

    def on_ranks_chosen(self, message: Ranks.Chosen) -> None:
        from gputop.screens.ranks import RanksScreen

        self._open(RanksScreen, message.rank)

    def action_budget(self) -> None:
        from gputop.screens.budget import BudgetScreen

        self._open(BudgetScreen)

    def action_all_ranks(self) -> None:
        from gputop.screens.ranks import RanksScreen

        self._open(RanksScreen)

    def action_numerics(self) -> None:
        from gputop.screens.numerics import NumericsScreen

        self._open(NumericsScreen)

    def action_estimator(self) -> None:
        from gputop.feed.examples import first_setup
        from gputop.screens.estimator import EstimatorScreen

        self._open(lambda *_: EstimatorScreen(first_setup()))

    def action_strategy(self) -> None:
        self._plan()

    def action_what_if(self) -> None:
        self._plan(what_if=True)

    def _plan(self, what_if: bool = False) -> None:
        from gputop.feed.planning import first_ask
        from gputop.screens.strategy import StrategyScreen

        self._open(lambda *_: StrategyScreen(first_ask(), what_if=what_if))

    def action_catalog(self) -> None:
        from gputop.screens.catalog import CatalogScreen

        used = self._used_gpu()
        self._open(lambda *_: CatalogScreen(used=used))

    def action_runs(self) -> None:
        from gputop.screens.runs import RunsScreen

        self._open(lambda *_: RunsScreen(self.clock, self.source.run_dir, mark=True))

    def compare_with(self, other: Path) -> None:
        """Show this run beside another one; the earlier of both is the baseline."""
        from gputop.feed.runs import by_time
        from gputop.screens.comparison import ComparisonScreen

        self._open(lambda *_: ComparisonScreen(*by_time(self.source.run_dir, other)))

    def action_links(self) -> None:
        from gputop.screens.topology import TopologyScreen

        used = self._used_gpu()
        self._open(lambda *_: TopologyScreen(used))

    def _used_gpu(self) -> str:
        """The driver's name of a GPU of the run; empty where it uses none."""
        snapshot = self.main.snapshot
        gpus = snapshot.summary.gpus if snapshot is not None else ()
        return next((gpu.name for gpu in gpus if gpu.ours), "")

    def on_screen_asked(self, message: ScreenAsked) -> None:
        self.push_screen(message.screen)
        self._want(self.page_screen)

    def open_finding(self, index: int) -> None:
        """Open the evidence of a finding by its place in the list."""
        snapshot = self.main.snapshot
        if snapshot is not None and index < len(snapshot.findings):
            self.on_findings_chosen(Findings.Chosen(snapshot.findings[index]))

    def open_rank(self, rank: int) -> None:
        """Open the ranks at one of them."""
        self.on_ranks_chosen(Ranks.Chosen(rank))

    def open_run(self, run_dir: Path) -> None:
        """Leave for another run, which is then shown in place of this one."""
        self.exit(AppResult("quit", then=run_dir))

    # ---- how it is opened, fed and closed

    def _open(self, kind: Callable[..., Above], *arguments: object) -> None:
        """Put a screen above the main one, in place of the one that is there."""
        snapshot = self.main.snapshot
        if snapshot is None:
            return
        page = kind(self.source.mode, self.source.control is not None, snapshot, *arguments)
        self.main.covered = True
        self.switch_screen(page) if self.page_screen is not None else self.push_screen(page)
        self._want(page)

    def _want(self, page: Above | None) -> None:
        if page is not None:
            self.feed.pages.wanted = page.page.loader()
        else:
            self.feed.pages.wanted = None
        self.tick()

    def _show_page(self, snapshot: Snapshot) -> None:
        page = self.page_screen
        if page is not None and page.is_mounted:
            page.receive(snapshot, self.main.missed() if self.main.paused else None)

    def on_page_wanted(self) -> None:
        self._want(self.page_screen)

    def on_page_closed(self) -> None:
        if self.page_screen is not None:
            self.pop_screen()
            if self.page_screen is None:
                self.main.uncover()
            self._want(self.page_screen)
        elif self.source.picked:
            self.exit(AppResult("quit", to_runs=True))

    def on_run_asked(self, message: RunAsked) -> None:
        if message.run_dir == self.source.run_dir:
            self.on_page_closed()
        elif self.source.mode == "live":
            name = message.run_dir.name
            self.notify(f"the training goes on here; in another terminal: gputop open {name}")
        else:
            self.open_run(message.run_dir)

    def on_pause_asked(self) -> None:
        self.main.action_pause()
        if self.newest is not None:
            self._show_page(self.newest)
