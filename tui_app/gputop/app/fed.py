"""An app that takes snapshots of a run in a worker thread, as often as the terminal keeps up."""

from __future__ import annotations

import sys

from textual.timer import Timer

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
        self._asked_meanwhile = False
        self._next: Timer | None = None

    def tick(self) -> None:
        """Ask the feed for a snapshot now, unless the terminal lags behind; once the feed has given
        the one that it is busy with.
        """
        if not self.is_running:
            return
        if self._taking:
            self._asked_meanwhile = True
            return
        if self.rhythm.backlogged(self._driver):
            self._tick_in(self.rhythm.period)
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
        self._tick_in(SLOW)

    def _schedule(self, snapshot: Snapshot) -> None:
        self.rhythm.measure(snapshot)
        asked, self._asked_meanwhile = self._asked_meanwhile, False
        if asked:
            self.tick()
        else:
            self._tick_in(self.rhythm.period)

    def _tick_in(self, seconds: float) -> None:
        """One timer at most: a snapshot that a key asked for comes in place of the next one."""
        if self._next is not None:
            self._next.stop()
        if self._ticking:
            self._next = self.set_timer(seconds, self.tick)

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
