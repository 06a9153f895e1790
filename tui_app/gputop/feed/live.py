"""Follows a growing record, a snapshot a call. In a worker thread; calls never overlap."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from gputop.feed.clock import Clock, SystemClock
from gputop.feed.pages import PageReader
from gputop.feed.prediction import Prediction, Predictor
from gputop.feed.refinement import beside_training
from gputop.feed.snapshot import Snapshot, first_snapshot
from gputop.feed.useful import UsefulReader
from gputop.feed.window import FINDINGS_PERIOD_S, STEPS, steps_back, window_of
from gputop_probes.record import layout

if TYPE_CHECKING:
    from gputop_analysis.findings.live import LiveFindings
    from gputop_analysis.model import Finding
    from gputop_probes.record.reader import RunRecord

PREDICTION_PERIOD_S = 5.0
"""What is measured beside the predicted memory is looked at this often."""
ENDED_LOOK_S = 30.0
"""Between two looks at the files of a run that has ended."""


class Feed(Protocol):
    """Anything that hands out snapshots."""

    pages: PageReader
    """Told by the screens above the main one what they want to read."""

    def first(self) -> Snapshot:
        """What can be shown at once."""
        ...

    def take(self) -> Snapshot:
        """The state now; blocks, for a worker thread. Never raises for an unreadable record."""
        ...


class LiveFeed:
    """Snapshots of a run directory as it is now."""

    def __init__(self, run_dir: Path, clock: Clock | None = None):
        self.run_dir = run_dir
        self.clock = clock or SystemClock()
        self.pages = PageReader(self.clock)
        self._record: RunRecord | None = None
        self._findings: LiveFindings | None = None
        self._last = first_snapshot(run_dir, self.clock.now_ns())
        self._next_findings = 0.0
        self._next_look = 0.0
        self._useful = UsefulReader(self.clock)
        self._predictor = Predictor(beside_training)
        self._prediction: Prediction | None = None
        self._next_prediction = 0.0

    def first(self) -> Snapshot:
        """What ``run.json`` says."""
        return self._last

    def take(self) -> Snapshot:
        """Refresh the record and sum it up; on trouble the last snapshot with the reason in
        ``problem``.
        """
        from gputop_probes.record.reader import RecordError

        try:
            if not (self.run_dir / layout.MANIFEST_FILE).exists():
                raise RecordError(
                    f"the record at {self.run_dir} is gone: this is what it last said"
                )
            snapshot = self._build()
        except (OSError, RecordError) as error:
            if self._last.problem == str(error):
                snapshot = self._last
            else:
                snapshot = self._last._replace(problem=str(error))
        if snapshot is not self._last:
            self._last = snapshot._replace(sequence=self._last.sequence + 1)
        return self._last

    def _build(self) -> Snapshot:
        from gputop.feed.build import build
        from gputop_probes.record.reader import RunRecord

        if self._record is None:
            self._record = RunRecord.open(self.run_dir)
        elif self._rests() or (not self._record.refresh() and self._last.ended):
            return self._with_page(self._record, self._last, moved=False)
        ended = all(host.state.state == "ended" for host in self._record.hosts.values())
        if ended:
            findings = self._final(self._record)
        else:
            findings = self._tick_findings(self._record)
        settled = ended or (self._findings is not None and self._findings.settled)
        snapshot = build(
            self._record,
            findings,
            window_steps=steps_back(self._record),
            now_ns=self.clock.now_ns(),
            ended=ended,
            settled=settled,
        )
        window, _ = window_of(self._record, snapshot)
        snapshot = snapshot._replace(
            prediction=self._tick_prediction(self._record),
            useful=self._useful.of(self._record, window, at_once=ended),
        )
        return self._with_page(self._record, snapshot, moved=True)

    def _rests(self) -> bool:
        """Whether the run has ended and its files were looked at a moment ago: those of a thousand
        ranks are thousands, and nothing is written to them any more.
        """
        now_s = self.clock.monotonic()
        if not self._last.ended or self._last.problem:
            return False
        if now_s < self._next_look:
            return True
        self._next_look = now_s + ENDED_LOOK_S
        return False

    def _with_page(self, record: RunRecord, snapshot: Snapshot, moved: bool) -> Snapshot:
        page = self.pages.read(record, snapshot, moved)
        if page is snapshot.page:
            return snapshot
        return snapshot._replace(page=page)

    def _tick_findings(self, record: RunRecord) -> tuple[Finding, ...]:
        from gputop_analysis.findings.live import LiveFindings

        now_s = self.clock.monotonic()
        if self._findings is not None and now_s < self._next_findings:
            return self._last.findings
        self._next_findings = now_s + FINDINGS_PERIOD_S
        if self._findings is None:
            self._findings = LiveFindings(record)
        return tuple(self._findings.tick())

    def _tick_prediction(self, record: RunRecord) -> Prediction | None:
        now_s = self.clock.monotonic()
        if now_s >= self._next_prediction:
            self._next_prediction = now_s + PREDICTION_PERIOD_S
            self._prediction = self._predictor.of(record)
        return self._prediction

    def _final(self, record: RunRecord) -> tuple[Finding, ...]:
        """Findings over the whole of an ended run."""
        from gputop.feed.window import short
        from gputop_analysis.findings import evaluate

        return tuple(evaluate(record, None if short(record) else 10 * STEPS))
