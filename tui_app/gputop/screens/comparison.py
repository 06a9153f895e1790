"""The screen of two runs compared."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from textual.app import ComposeResult
from textual.message import Message
from textual.screen import Screen

from gputop.feed.comparison import ComparedRuns, read_comparison
from gputop.feed.plots import Trouble
from gputop.feed.snapshot import Snapshot
from gputop.messages import PageClosed
from gputop.screens.moving import Moving
from gputop.screens.page import Reads, bindings, nothing
from gputop.screens.typed import Typed
from gputop.widgets.comparison import ComparisonPane
from gputop.widgets.footer import Footer


class ComparisonRead(Message):
    """Two runs have been compared, or cannot be."""

    def __init__(self, pair: tuple[Path, Path], answer: ComparedRuns | Trouble):
        super().__init__()
        self.pair = pair
        self.answer = answer


class ComparisonScreen(Typed, Moving, Screen[None]):
    """Run B beside the baseline A; a worker thread reads and compares them."""

    NAME = "comparison"
    BINDINGS = bindings(NAME)
    DEFAULT_CSS = """
    ComparisonScreen { layout: vertical; background: $background; color: $role-text; }
    ComparisonScreen #comparison { width: 1fr; height: 1fr; }
    ComparisonScreen #footer { dock: bottom; height: 1; }
    """
    AUTO_FOCUS = "#comparison"

    def __init__(self, a: Path, b: Path):
        super().__init__()
        self.pair = (a, b)
        self.page = Reads(nothing)

    def compose(self) -> ComposeResult:
        yield ComparisonPane(id="comparison")
        yield Footer("live", False, self.NAME, id="footer")

    def on_mount(self) -> None:
        self._read()

    @property
    def pane(self) -> ComparisonPane:
        return self.query_one(ComparisonPane)

    def _read(self) -> None:
        self.pane.names = (self.pair[0].name, self.pair[1].name)
        self.pane.answer = None
        work = partial(self._work, self.pair)
        self.run_worker(work, thread=True, group="comparison", exit_on_error=False)

    def _work(self, pair: tuple[Path, Path]) -> None:
        """In a worker thread."""
        self.post_message(ComparisonRead(pair, read_comparison(*pair)))

    def on_comparison_read(self, message: ComparisonRead) -> None:
        if message.pair == self.pair:
            self.pane.answer = message.answer

    # ---- what the app asks of a screen above the main one

    def receive(self, snapshot: Snapshot, missed_steps: int | None) -> None:
        """Nothing of the run that is watched stands here."""

    def copy_text(self) -> str:
        """The command that prints the same."""
        from gputop_probes.runs import shell_name

        return " ".join(["gputop diff", *(shell_name(path) for path in self.pair)])

    # ---- actions of the table

    def _move(self, step: int) -> None:
        self.pane.move(step)

    def action_swap(self) -> None:
        """The other run is the baseline."""
        self.pair = (self.pair[1], self.pair[0])
        self._read()

    def action_back(self) -> None:
        self.post_message(PageClosed())
