"""What stands on the normal screen after a run: the verdict, the first findings, the way back to the record."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gputop_analysis.report import Report

_SHOWN_FINDINGS = 3


def print_summary(run_dir: Path) -> Report | None:
    """Print the summary of a run on stderr and return its report, which is judged only once.

    A record that cannot be read is said in one line, never raised.
    """
    from gputop_analysis.report import Report
    from gputop_probes.record.reader import RecordError, RunRecord

    try:
        report = Report(RunRecord.open(run_dir))
    except RecordError as error:
        print(f"gputop: {error}", file=sys.stderr)
        return None
    for line in summary_lines(report):
        print(f"gputop: {line}", file=sys.stderr)
    return report


def print_report_json(report: Report) -> None:
    """Print the report as JSON on stdout."""
    from gputop_analysis.report import as_data

    print(json.dumps(as_data(report), indent=2, allow_nan=False))


def summary_lines(report: Report) -> list[str]:
    """The summary of a run, line by line."""
    from gputop.cli.records import shell_name

    lines = [report.verdict.headline]
    for finding in report.findings[:_SHOWN_FINDINGS]:
        worth = finding.recoverable_ms_per_step
        won = f" (would win back {worth:.1f} ms a step)" if worth else ""
        lines.append(f"[{finding.severity}] {finding.id} {finding.title}{won}")
        if finding.severity == "critical":
            lines.append(f"    why: {finding.evidence}")
        lines.append(f"    fix: {finding.fix}")
    more = len(report.findings) - _SHOWN_FINDINGS
    if more > 0:
        lines.append(f"and {more} more finding{'s' if more > 1 else ''}")
    name = shell_name(report.record.path)
    return [*lines, f"replay: gputop open {name}   report: gputop report {name}"]
