"""Words on the normal screen after a run: verdict, first findings, way to the record."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gputop.cli.notices import notice
from gputop.cli.streams import below
from gputop.cli.working import working

if TYPE_CHECKING:
    from gputop_analysis.report import Report

_SHOWN_FINDINGS = 3
_WHO = "gputop: "


def print_summary(run_dir: Path) -> Report | None:
    """Print the summary of a run on stderr and return its report, which is judged only once.

    A record that cannot be read is said in one line, never raised.
    """
    from gputop_analysis.report import Report
    from gputop_probes.record.reader import RecordError, RunRecord

    try:
        with working("judging the run"):
            report = Report(RunRecord.open(run_dir))
            lines = summary_lines(report)
    except RecordError as error:
        notice(str(error))
        return None
    for line in shown(lines, report.record.manifest.cwd):
        print(line, file=below(sys.stderr))  # what is not ours in it is plain already
    return report


def print_report_json(report: Report) -> None:
    """Print the report as JSON on stdout."""
    from gputop_analysis.report import as_data

    print(json.dumps(as_data(report), indent=2, allow_nan=False))


def summary_lines(report: Report) -> list[tuple[str, str]]:
    """The summary of a run: each line with the style it has in a colourful terminal."""
    from gputop_analysis.report.words import HEALTH_STYLE, recoverable
    from gputop_analysis.text import counted
    from gputop_probes.runs import shell_name

    lines = [(report.verdict.headline, HEALTH_STYLE[report.verdict.health])]
    for finding in report.findings[:_SHOWN_FINDINGS]:
        lines.append((f"[{finding.severity}] {finding.id} {finding.title}", finding.severity))
        if won := recoverable(finding):
            lines.append((f"    wins back: {won}", ""))
        if finding.severity == "critical":
            lines.append((f"    why: {finding.evidence}", ""))
        lines.append((f"    fix: {finding.fix}", ""))
    more = len(report.findings) - _SHOWN_FINDINGS
    if more > 0:
        lines.append((f"and {counted(more, 'more finding')}", ""))
    name = shell_name(report.record.path)
    return [*lines, (f"replay: gputop open {name}   report: gputop report {name}", "dim")]


def shown(lines: list[tuple[str, str]], folder: str = "") -> list[str]:
    """The lines as stderr takes them: each begins with who speaks; on a terminal wrapped at words,
    in colour, and with links to places in files below ``folder``.
    """
    from gputop import settings
    from gputop.links import links_of
    from gputop_analysis.text import painted, wrap
    from gputop_probes.record.plain import plain_line

    if not sys.stderr.isatty():
        return [plain_line(f"{_WHO}{text}") for text, _ in lines]
    colour = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    width = max(40, shutil.get_terminal_size().columns - 1)
    links = links_of(folder, settings.load().text("terminal.links"))
    rows = []
    for line, style in lines:
        text = plain_line(line)
        indent = " " * (len(_WHO) + (len(text) - len(text.lstrip())))
        for row in wrap(_WHO + text, width, subsequent_indent=indent, break_on_hyphens=False):
            linked = links.marked(row) if links else row
            rows.append(painted(linked, style, colour and bool(style)))
    return rows
