"""Reads a run repeatedly and hands readings to publishers, none of which holds up another."""

from __future__ import annotations

import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from gputop.publish.reading import OVER, Points, Reading, read
from gputop.publish.table import Publisher, PublisherEntry
from gputop_analysis.findings.live import LiveFindings
from gputop_analysis.html import as_html
from gputop_analysis.model import Finding
from gputop_analysis.overview import RunSummary
from gputop_analysis.report import Report
from gputop_analysis.summary import summarise
from gputop_analysis.verdict import verdict
from gputop_probes.record.plain import plain_line
from gputop_probes.record.reader import RunRecord

FINISH_S = 60.0
"""How long publishers may take for the last reading, all together."""
_WAITING = 8
"""Readings that wait for a slow publisher; their points are joined beyond that."""
_WINDOW_STEPS = 1000


class Asked(NamedTuple):
    """One publisher that the user asked for."""

    entry: PublisherEntry
    target: str


def follow(record: RunRecord, requests: list[Asked], say: Callable[[str], None]) -> list[Asked]:
    """Publish a run until it is over.

    Returns:
        The publishers that took the last reading.
    """
    logging.disable(logging.CRITICAL)  # libraries tell of dead servers at length; ``say`` does once
    lines = [PublisherThread(publisher, record.path.name, say) for publisher in requests]
    source = RecordReadings(record)
    pause = min(publisher.entry.every_s for publisher in requests)
    while True:
        reading = source.next()
        for line in lines:
            line.put(reading)
        if reading.over:
            break
        time.sleep(pause)
    last = source.last()
    page = as_html(Report(record))
    deadline = time.monotonic() + FINISH_S
    for line in lines:
        line.end(last, page)
    done = [line.join(max(0.0, deadline - time.monotonic())) for line in lines]
    return list(itertools.compress(requests, done))


class RecordReadings:
    """The readings of one record."""

    def __init__(self, record: RunRecord):
        self._record = record
        self._live = LiveFindings(record)
        self._points = Points(record)

    def next(self) -> Reading:
        """Everything up to now."""
        self._record.refresh()
        summary = summarise(self._record, _WINDOW_STEPS)
        return self._reading(summary, [] if _over(summary) else self._live.tick())

    def last(self) -> Reading:
        """The run as its report judges it."""
        self._record.refresh()
        report = Report(self._record)
        return self._reading(report.summary, report.findings)

    def _reading(self, summary: RunSummary, findings: list[Finding]) -> Reading:
        judged = verdict(summary, findings, self._live.settled)
        reading = read(self._record, summary, findings, judged)
        return replace(reading, points=self._points.new())


def _over(summary: RunSummary) -> bool:
    return summary.state in OVER


class PublisherThread:
    """One publisher in a thread of its own. It opens there: a dead server delays nobody."""

    def __init__(self, request: Asked, run: str, say: Callable[[str], None]):
        self._asked, self._run, self._say = request, run, say
        self._waiting: queue.Queue[tuple[Reading, str | None]] = queue.Queue()
        self._due_s = 0.0
        self._late: list[Reading] = []
        self.failed = False
        self._told = ""
        self._thread = threading.Thread(target=self._work, name=request.entry.name, daemon=True)
        self._thread.start()

    def put(self, reading: Reading) -> None:
        """Queue a reading where it is due; the points of others go along with the next."""
        self._late.append(reading)
        now_s = time.monotonic()
        if now_s < self._due_s or self._waiting.qsize() >= _WAITING:
            return
        self._due_s = now_s + self._asked.entry.every_s * 0.9
        self._waiting.put((self._joined(), None))

    def end(self, reading: Reading, page: str) -> None:
        """Queue the last reading."""
        self._late.append(reading)
        self._waiting.put((self._joined(), page))

    def join(self, seconds: float) -> bool:
        """Wait for the last reading to be taken; whether it was."""
        self._thread.join(seconds)
        if self._thread.is_alive():
            self._tell(f"no answer within {FINISH_S:.0f} s: given up")
            return False
        return not self.failed

    def _joined(self) -> Reading:
        points = tuple(point for reading in self._late for point in reading.points)
        newest = replace(self._late[-1], points=points)
        self._late = []
        return newest

    def _work(self) -> None:
        publisher: Publisher | None = None
        while True:
            reading, page = self._waiting.get()
            try:
                if publisher is None:
                    publisher = self._asked.entry.open(self._asked.target, self._run)
                if page is None:
                    publisher.publish(reading)
                else:
                    publisher.finish(reading, page)
                self.failed = False
            except BaseException as error:  # libraries raise SystemExit, too
                self.failed = True
                self._tell(_reason(error))
            if page is not None:
                return

    def _tell(self, why: str) -> None:
        """Each reason once."""
        if why != self._told:
            self._told = why
            self._say(f"--{self._asked.entry.name} {self._asked.target}: {why}")


def _reason(error: BaseException) -> str:
    words = str(error).strip().splitlines()
    return plain_line(words[0][:200]) if words else type(error).__name__
