"""An app that takes snapshots of a run in a worker thread, as often as the terminal keeps up."""

from __future__ import annotations

import sys

from gputop.app.input_watch import InputWatch
from gputop.app.interrupted import InterruptedApp
from gputop.app.rhythm import SLOW, Rhythm
from gputop.app.source import Source
from gputop.feed.clock import Clock, SystemClock
from gputop.feed.live import Feed, LiveFeed
from gputop.feed.snapshot import Snapshot
from gputop.messages import FeedFailed, SnapshotArrived
from gputop.output.progress_bar import newest_bar
from gputop.output.tail import Tail


class FedApp(InterruptedApp):
    """Each snapshot comes as a ``SnapshotArrived``; what a subclass makes of it is its own."""

    def __init__(
        self,
        source: Source,
        clock: Clock | None = None,
        feed: Feed | None = None,
        ticking: bool = True,
    ):
        super().__init__(source)
        self.clock = clock or SystemClock()
        self.feed = feed or make_feed(source, self.clock)
        self.tail = Tail(source.run_dir)
        self.input_watch = InputWatch(source)
        self.rhythm = Rhythm(self.clock)
        self.errors: list[Exception] = []
        self._barred: tuple[Snapshot, Snapshot] | None = None
        self._ticking = ticking
        self._taking = False

    def tick(self) -> None:
        """Ask the feed for a snapshot, unless it is still busy or the terminal lags behind."""
        if self._taking or not self.is_running:
            return
        if self.rhythm.backlogged(self._driver):
            self.set_timer(self.rhythm.period, self.tick)
            return
        self._taking = True
        self.run_worker(self.take, thread=True, group="feed", exit_on_error=False)

    def take(self) -> None:
        """In a worker thread: look at the record and the output, then tell the app."""
        try:
            snapshot = self.feed.take()
            grown = self.tail.poll(snapshot.output_lengths)
            output = self.tail.view() if grown else None
            snapshot = self._with_bar(snapshot)
            self.input_watch.look(self.tail.buffer.lines)
        except Exception as error:
            self.post_message(FeedFailed(error))
            return
        self.post_message(SnapshotArrived(snapshot, output))

    def _with_bar(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with the command's own progress bar where nothing else tells its end; the
        same object as long as both are the same, so that nothing is drawn anew.
        """
        if snapshot.ended or snapshot.summary.total_steps:
            return snapshot
        bar = newest_bar(self.tail.buffer.lines)
        if bar is None:
            return snapshot
        if self._barred is None or self._barred[0] is not snapshot or self._barred[1].bar != bar:
            self._barred = snapshot, snapshot._replace(bar=bar)
        return self._barred[1]

    def on_feed_failed(self, message: FeedFailed) -> None:
        self._taking = False
        if not any(repr(error) == repr(message.error) for error in self.errors):
            self.errors.append(message.error)
            self.notify(
                f"{type(message.error).__name__}: {message.error}",
                title="gputop failed here",
                severity="error",
            )
        if self._ticking:
            self.set_timer(SLOW, self.tick)

    def _schedule(self, snapshot: Snapshot) -> None:
        self.rhythm.measure(snapshot)
        if self._ticking:
            self.set_timer(self.rhythm.period, self.tick)

    def surface_errors(self) -> None:
        """After the screen is restored: what failed inside, in one line each."""
        for error in self.errors:
            print(
                f"gputop: the screen had trouble: {type(error).__name__}: {error}", file=sys.stderr
            )


def make_feed(source: Source, clock: Clock) -> Feed:
    """The feed for a source: live, or a replay that starts where it makes sense."""
    if source.mode == "live":
        return LiveFeed(source.run_dir, clock)
    from gputop.feed.replay import ReplayFeed

    return ReplayFeed(source.run_dir, clock, play=source.mode == "demo")
