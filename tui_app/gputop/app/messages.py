"""What workers tell the app, in the past tense."""

from __future__ import annotations

from textual.message import Message

from gputop.feed.snapshot import Snapshot
from gputop.output.tail import OutputView


class SnapshotArrived(Message):
    """The feed has looked at the record."""

    def __init__(self, snapshot: Snapshot, output: OutputView | None):
        super().__init__()
        self.snapshot = snapshot
        self.output = output
        """None: nothing was written since the last time."""


class FeedFailed(Message):
    """The feed raised what it should not: shown, and kept for stderr."""

    def __init__(self, error: Exception):
        super().__init__()
        self.error = error
