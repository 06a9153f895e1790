"""What stands on the normal screen after a run: the verdict, the first findings, the way back to the record."""

from __future__ import annotations

import json
import sys
from pathlib import Path

_SHOWN_FINDINGS = 3


def print_summary(run_dir: Path) -> None:
    """Print the summary of a run on stderr. A record that cannot be read is said in one line, never raised."""
    from gputop_probes.record.reader import RecordError, RunRecord

    try:
        lines = summary_lines(RunRecord.open(run_dir))
    except RecordError as error:
        lines = [str(error)]
    for line in lines:
        print(f"gputop: {line}", file=sys.stderr)


def summary_lines(record) -> list[str]:
    """The summary of an opened record, line by line."""
    from gputop.cli.records import shell_name
    from gputop_analysis.findings import evaluate
    from gputop_analysis.summary import summarise
    from gputop_analysis.verdict import verdict

    summary = summarise(record)
    findings = evaluate(record)
    lines = [verdict(summary, findings).headline]
    for finding in findings[:_SHOWN_FINDINGS]:
        worth = finding.recoverable_ms_per_step
        won = f" (would win back {worth:.1f} ms a step)" if worth else ""
        lines.append(f"[{finding.severity}] {finding.id} {finding.title}{won}")
        lines.append(f"    fix: {finding.fix}")
    more = len(findings) - _SHOWN_FINDINGS
    if more > 0:
        lines.append(f"and {more} more finding{'s' if more > 1 else ''}")
    name = shell_name(record.path)
    return [*lines, f"replay: gputop open {name}   report: gputop report {name}"]


def print_report_json(run_dir: Path) -> None:
    """Print the report as JSON on stdout."""
    from gputop_analysis.report import report_data
    from gputop_probes.record.reader import RecordError, RunRecord

    try:
        data = report_data(RunRecord.open(run_dir))
    except RecordError as error:
        print(f"gputop: {error}", file=sys.stderr)
        return
    print(json.dumps(data, indent=2, allow_nan=False))
