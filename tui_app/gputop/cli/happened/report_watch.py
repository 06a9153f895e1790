"""``gputop report --watch``: the report again, in place on a terminal, on change in a pipe."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from gputop.cli.streams import below

if TYPE_CHECKING:
    from gputop_analysis.report import Report
    from gputop_probes.record.reader import RunRecord

EVERY_S = 1.0
REST = 4.0
"""A report that takes t seconds is made anew after this many t: long runs stay cheap."""
_HIDE, _SHOW, _CLEAR = "\x1b[?25l", "\x1b[?25h", "\x1b[J"


def watch(record: RunRecord, width: Callable[[], int], colour: bool) -> int:
    """Show the report until the run has ended or Ctrl-C. Returns the exit code, 0."""
    try:
        if sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
            _in_place(record, width, colour)
        else:
            _on_change(record, width)
    except KeyboardInterrupt:
        pass
    return 0


def _in_place(record: RunRecord, width: Callable[[], int], colour: bool) -> None:
    from gputop_analysis.report import as_text

    drawn = 0
    orders = below(sys.stdout)
    orders.write(_HIDE)
    try:
        for report in _reports(record):
            lines = as_text(report, width(), colour).splitlines()
            over = report.summary.state in ("ended", "lost")
            if over:
                shown = lines
            else:
                shown = _cut(lines, os.get_terminal_size(sys.stdout.fileno()).lines - 1)
            back = f"\x1b[{drawn}F" if drawn else ""
            orders.write(back + _CLEAR)
            sys.stdout.write("".join(f"{line}\n" for line in shown))
            sys.stdout.flush()
            drawn = len(shown)
    finally:
        orders.write(_SHOW)
        sys.stdout.flush()


def _cut(lines: list[str], rows: int) -> list[str]:
    """What fits on the screen: a redraw cannot reach lines that have scrolled away."""
    if len(lines) <= rows or rows < 2:
        return lines[: max(1, rows)]
    return [
        *lines[: rows - 1],
        f"... {len(lines) - rows + 1} more lines: a taller terminal, or report without --watch",
    ]


def _on_change(record: RunRecord, width: Callable[[], int]) -> None:
    """A block when state, verdict or findings change; figures alone move every second."""
    from gputop_analysis.report import as_text

    shown = None
    for report in _reports(record):
        findings = [(finding.id, finding.rank, finding.severity) for finding in report.findings]
        state = (report.summary.state, report.verdict.health, report.bottleneck.kind, findings)
        if state != shown:
            stamp = time.strftime("%Y-%m-%d %H:%M:%S")
            print(f"--- {stamp}\n{as_text(report, width())}\n", flush=True)
        shown = state


def _reports(record: RunRecord) -> Iterator[Report]:
    """A report a second until the run is over; the last one is of the finished run."""
    from gputop_analysis.report import Report
    from gputop_analysis.summary import run_state

    while True:
        began = time.monotonic()
        record.refresh()
        over = run_state(record, time.time_ns())[0] in ("ended", "lost")
        yield Report(record, live=not over)
        if over:
            return
        took = time.monotonic() - began
        time.sleep(max(EVERY_S - took, REST * took if took > EVERY_S / (1 + REST) else 0.0))
