"""The screen of runs: choose one to open, or two to compare."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.events import Key
from textual.message import Message
from textual.screen import Screen

from gputop.feed.clock import Clock
from gputop.feed.runs import Figures, RunsView, list_all, read_figures
from gputop.feed.snapshot import Snapshot
from gputop.messages import PageClosed, RunAsked, ScreenAsked
from gputop.screens.moving import Moving
from gputop.screens.page import Reads, bindings, nothing
from gputop.screens.typed import Typed
from gputop.screens.typed_text import typed_text
from gputop.widgets.footer import Footer
from gputop.widgets.runs_panes import AROUND_ROWS, RunFacts, RunsTable, RunsTitle

if TYPE_CHECKING:
    from gputop_probes.runs import RunInfo

FACTS_FROM, ROOMY_FROM = 18, 32
"""Rows of the screen from which on the chosen run's facts stand below the table, and more rows of
them are kept.
"""
FACTS = (7, 10)
LOOK_EVERY_S = 5.0
"""Seconds between two looks at the directory of runs."""


IDLE = (frozenset({"compare"}), frozenset[str](), frozenset({"take"}))
"""What the footer does not offer where none, one or two are marked: one key for one thing."""


class RunsListed(Message):
    """The directory of runs was looked at."""

    def __init__(self, runs: list[RunInfo]):
        super().__init__()
        self.runs = runs


class FiguresRead(Message):
    """A run's record was read."""

    def __init__(self, run: RunInfo, figures: Figures):
        super().__init__()
        self.run = run
        self.figures = figures


class RunsScreen(Typed, Moving, Screen[None]):
    """The directory is listed at once; worker threads read the records in sight in turn."""

    NAME = "runs"
    BINDINGS = bindings(NAME)
    DEFAULT_CSS = """
    RunsScreen { layout: vertical; background: $background; color: $role-text; }
    RunsScreen #title { dock: top; height: 1; }
    RunsScreen #facts { height: 1fr; }
    RunsScreen.shorter #facts { display: none; }
    RunsScreen #footer { dock: bottom; height: 1; }
    """
    AUTO_FOCUS = "#table"

    def __init__(self, clock: Clock, at: Path | None = None, mark: bool = False):
        """``at``: where the cursor begins; ``mark``: that run is marked, to be compared with."""
        super().__init__()
        self.view = RunsView()
        self.page = Reads(nothing)
        self._clock = clock
        self._at = at
        self._mark = mark
        self._typing = False
        self._reading = False

    def compose(self) -> ComposeResult:
        from gputop_probes.runs import runs_dir

        yield RunsTitle(id="title")
        yield RunsTable(self._clock.now_ns, runs_dir(), id="table")
        yield RunFacts(id="facts")
        yield Footer("live", False, self.NAME, id="footer")

    def on_mount(self) -> None:
        self._list()
        self.set_interval(LOOK_EVERY_S, self._list)

    def on_resize(self) -> None:
        self.set_class(self.size.height < FACTS_FROM, "shorter")
        self._share_rows()

    def _share_rows(self) -> None:
        """The table has the rows of its runs, the facts follow; they keep some where runs abound,
        and where there is no run the table's words have all.
        """
        height, rows = self.size.height - 2, len(self.view.shown)
        facts = 0 if height + 2 < FACTS_FROM or not rows else FACTS[height + 2 >= ROOMY_FROM]
        wanted = rows + AROUND_ROWS if facts else height
        self.table.styles.height = max(min(wanted, height - facts), 1)

    # ---- what the app asks of a screen above the main one

    def receive(self, snapshot: Snapshot, missed_steps: int | None) -> None:
        """Nothing of the run that is watched stands here."""

    def copy_text(self) -> str:
        """The command that opens the chosen run, or compares the marked ones."""
        from gputop_probes.runs import shell_name

        pair = self.view.pair(None)
        if pair is not None:
            return " ".join(["gputop diff", *(shell_name(path) for path in pair)])
        chosen = self.table.chosen
        if chosen is not None:
            return f"gputop open {shell_name(chosen.path)}"
        return ""

    # ---- reading

    def _list(self) -> None:
        self.run_worker(self._look, thread=True, group="list", exit_on_error=False)

    def _look(self) -> None:
        """In a worker thread."""
        self.post_message(RunsListed(list_all()))

    def on_runs_listed(self, message: RunsListed) -> None:
        first = not self.view.listed
        view = self.view.with_runs(message.runs)
        if first and self._mark and self._at in [row.path for row in view.everything]:
            assert self._at is not None
            view = view.toggled(self._at)
        self._show(view, self._at if first else None)

    def _read_next(self) -> None:
        """Read the next run in sight that was not read yet, the one at the cursor first."""
        unread = (row for row in self.table.in_sight() if not row.fresh)
        row = next(unread, None)
        if self._reading or row is None:
            return
        self._reading = True
        work = partial(self._read, row.run)
        self.run_worker(work, thread=True, group="read", exit_on_error=False)

    def _read(self, run: RunInfo) -> None:
        """In a worker thread."""
        self.post_message(FiguresRead(run, read_figures(run)))

    def on_figures_read(self, message: FiguresRead) -> None:
        self._reading = False
        self._show(self.view.with_figures(message.run.path, message.figures))

    # ---- what is shown

    @property
    def table(self) -> RunsTable:
        return self.query_one(RunsTable)

    def _show(self, view: RunsView, at: Path | None = None) -> None:
        """Another view; the cursor stays on its run where that is still shown."""
        chosen = self.table.chosen
        self.view = view
        self.table.view = view
        self._share_rows()
        if at is None and chosen is not None:
            at = chosen.path
        self.table.follow(at)
        self._tell()

    def _tell(self) -> None:
        title = self.query_one(RunsTitle)
        title.view, title.typing = self.view, self._typing
        self.query_one(RunFacts).row = self.table.chosen
        self.query_one(Footer).idle = IDLE[len(self.view.marked)]
        self.call_after_refresh(self._read_next)

    def _move(self, step: int) -> None:
        self.table.move(step)
        self._tell()

    # ---- filter and marks

    def action_filter(self) -> None:
        self._typing = True
        self._tell()

    def on_key(self, event: Key) -> None:
        """While the filter is typed, letters go there."""
        if not self._typing:
            return
        text = typed_text(self.view.filter, event)
        if text is not None:
            self._show(self.view.filtered(text))

    def action_mark(self) -> None:
        chosen = self.table.chosen
        if chosen is None:
            return
        if chosen.readable:
            self._show(self.view.toggled(chosen.path))
        else:
            self.notify("that one cannot be read", severity="warning")

    # ---- from a run on

    def action_take(self) -> None:
        """Enter: the filter is typed, two marked runs are compared, or the run is opened."""
        chosen = self.table.chosen
        if self._typing:
            self._typing = False
            self._tell()
        elif (pair := self.view.pair(None)) is not None:
            self._compare(pair)
        elif chosen is not None:
            self._open(chosen.path, chosen.readable)

    def on_runs_table_opened(self) -> None:
        chosen = self.table.chosen
        if chosen is not None:
            self._tell()
            self._open(chosen.path, chosen.readable)

    def _open(self, path: Path, readable: bool) -> None:
        if readable:
            self.post_message(RunAsked(path))
        else:
            self.notify("that one cannot be read", severity="warning")

    def action_compare(self) -> None:
        chosen = self.table.chosen
        pair = self.view.pair(chosen.path if chosen is not None else None)
        if pair is None:
            self.notify("mark a run with space, then c on another compares both")
        else:
            self._compare(pair)

    def _compare(self, pair: tuple[Path, Path]) -> None:
        from gputop.screens.comparison import ComparisonScreen

        self.post_message(ScreenAsked(ComparisonScreen(*pair)))

    def action_back(self) -> None:
        """One thing after the other: the filter, the marks, the screen."""
        if self._typing or self.view.filter:
            self._typing = False
            self._show(self.view.filtered(""))
        elif self.view.marked and not self._mark:
            self._show(RunsView(self.view.everything, listed=True))
        else:
            self.post_message(PageClosed())
