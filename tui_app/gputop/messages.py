"""What workers tell the app, in the past tense."""

from __future__ import annotations

from pathlib import Path

from textual.message import Message
from textual.screen import Screen

from gputop.feed.snapshot import Snapshot
from gputop.output.tail import OutputView


class SnapshotArrived(Message):
    """The feed has looked at the record."""

    def __init__(self, snapshot: Snapshot, output: OutputView | None):
        super().__init__()
        self.snapshot = snapshot
        self.output = output
        """None: nothing was written since the last time."""


class PageWanted(Message):
    """A screen above the main one wants to show something else than it did."""


class PageClosed(Message):
    """A screen above the main one is to go."""


class ScreenAsked(Message):
    """A screen above the main one asks for another above itself."""

    def __init__(self, screen: Screen[None]):
        super().__init__()
        self.screen = screen


class RunAsked(Message):
    """A run was chosen: it is to be shown."""

    def __init__(self, run_dir: Path):
        super().__init__()
        self.run_dir = run_dir


class PauseAsked(Message):
    """The picture is to be held, or to go on."""


class FeedFailed(Message):
    """The feed raised what it should not: shown, and kept for stderr."""

    def __init__(self, error: Exception):
        super().__init__()
        self.error = error
