"""Shows a record as it was at a chosen moment, and moves that moment on."""

from __future__ import annotations

from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from gputop.feed.clock import Clock, SystemClock
from gputop.feed.pages import PageReader
from gputop.feed.prediction import Predictor
from gputop.feed.snapshot import Position, Snapshot, first_snapshot
from gputop.feed.useful import UsefulReader
from gputop.feed.window import FINDINGS_PERIOD_S, STEPS, steps_back, window_of

if TYPE_CHECKING:
    from gputop_analysis.model import Finding
    from gputop_probes.record.reader import RunRecord

SLOWEST, FASTEST = 0.25, 64.0
SHOW_SPEED = 4.0
SHOW_FROM = 0.4
"""Share of the recording at which the demo begins, each time: there is something to see."""


class ReplayFeed:
    """Snapshots of a finished run. The screen calls ``seek`` ..., a worker thread ``take``."""

    def __init__(self, run_dir: Path, clock: Clock | None = None, play: bool = False):
        """
        Args:
            run_dir: the record.
            clock: where the time of playing comes from.
            play: begin in the middle and play fast, again and again; otherwise stand at the end,
                where the verdict is.
        """
        self.run_dir = run_dir
        self.clock = clock or SystemClock()
        self.speed = SHOW_SPEED if play else 1.0
        self._loops = play
        self.playing = play
        self.pages = PageReader(self.clock)
        self._part: RunRecord | None = None
        self._lock = Lock()
        self._share: float | None = SHOW_FROM if play else 1.0
        self._at_ns = 0
        self._played_until = 0.0
        self._span = (0, 1)
        self._record: RunRecord | None = None
        self._last = first_snapshot(run_dir)
        self._findings: tuple[Finding, ...] = ()
        self._judged_at: tuple[int, float] | None = None
        self._useful = UsefulReader(self.clock)
        self._predictor = Predictor()

    def first(self) -> Snapshot:
        """What ``run.json`` says."""
        return self._last

    # ---- moving, from the screen's thread

    def seek(self, share: float) -> None:
        """Move by a share of the whole recording."""
        with self._lock:
            start, end = self._span
            self._at_ns = min(max(self._at_ns + int(share * (end - start)), start), end)

    def seek_to(self, share: float) -> None:
        """Go to a share of the whole recording: 0 the start, 1 the end."""
        with self._lock:
            start, end = self._span
            self._at_ns = start + int(min(max(share, 0.0), 1.0) * (end - start))

    def change_speed(self, factor: float) -> None:
        """Play faster or slower."""
        with self._lock:
            self.speed = min(max(self.speed * factor, SLOWEST), FASTEST)

    def toggle(self) -> None:
        """Play or hold; at the end, play from the start again."""
        with self._lock:
            self.playing = not self.playing
            self._played_until = self.clock.monotonic()
            if self.playing and self._at_ns >= self._span[1]:
                self._at_ns = self._span[0]

    # ---- looking, in the worker thread

    def take(self) -> Snapshot:
        """The run at the present position; the last snapshot itself where nothing moved."""
        from gputop_probes.record.reader import RecordError

        try:
            if self._record is None:
                self._open()
            position = self._advance()
            moved = position != self._last.position
            snapshot = self._build(position) if moved else self._last
            assert self._part is not None
            page = self.pages.read(self._part, snapshot, moved)
            if moved or page is not snapshot.page:
                self._last = snapshot._replace(page=page, sequence=self._last.sequence + 1)
        except (OSError, RecordError) as error:
            self._last = self._last._replace(problem=str(error))
        return self._last

    def _open(self) -> None:
        from gputop.feed.cut import first_step_ns, span
        from gputop_probes.record.reader import RunRecord

        self._record = RunRecord.open(self.run_dir)
        self._span = span(self._record)
        self._played_until = self.clock.monotonic()
        if self._share is not None:
            self.seek_to(self._share)
        if self.playing:  # nobody wants to watch torch being imported
            self._at_ns = max(self._at_ns, first_step_ns(self._record))

    def _advance(self) -> Position:
        with self._lock:
            now_s = self.clock.monotonic()
            start, end = self._span
            if self.playing:
                self._at_ns = min(
                    end, self._at_ns + int((now_s - self._played_until) * self.speed * 1e9)
                )
                if self._loops and self._at_ns >= end:
                    self._at_ns = start + int(SHOW_FROM * (end - start))
                self.playing = self._at_ns < end
            self._played_until = now_s
            return Position(self._at_ns, start, end, self.speed, self.playing)

    def _build(self, position: Position) -> Snapshot:
        from gputop.feed.build import build
        from gputop.feed.cut import cut, output_lengths

        assert self._record is not None
        at_end = position.at_ns >= position.end_ns
        part = self._part = cut(self._record, position.at_ns)
        snapshot = build(
            part,
            self._judge(part, position),
            window_steps=steps_back(part),
            now_ns=position.at_ns,
            ended=at_end,
        )
        window, _ = window_of(part, snapshot)
        return snapshot._replace(
            position=position,
            output_lengths=None if at_end else output_lengths(part),
            prediction=self._predictor.of(part),
            useful=self._useful.of(part, window, at_once=not position.playing),
        )

    def _judge(self, part: RunRecord, position: Position) -> tuple[Finding, ...]:
        """Findings over what has been seen, at most every two seconds while playing."""
        from gputop.feed.window import short
        from gputop_analysis.findings import evaluate

        now_s = self.clock.monotonic()
        if (
            self._judged_at is not None
            and position.playing
            and now_s - self._judged_at[1] < FINDINGS_PERIOD_S
        ):
            return self._findings
        self._judged_at = (position.at_ns, now_s)
        at_end = position.at_ns >= position.end_ns
        self._findings = tuple(
            evaluate(part, None if at_end and short(part) else STEPS, live=not at_end)
        )
        return self._findings
