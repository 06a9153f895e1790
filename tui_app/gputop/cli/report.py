"""``gputop report RUN``: what a run shows, for people or as JSON."""

from __future__ import annotations

import json
import os
import shutil
import sys

from gputop.cli.parsing import Parser
from gputop.cli.records import open_record


def execute(words: list[str]) -> int:
    """Print the report of one run."""
    parser = Parser("report", "Print what a run shows.", usage="gputop report [RUN] [--json]")
    parser.add_run()
    parser.add_argument("--json", action="store_true", help="print it as JSON")
    options = parser.parse_args(words)
    record = open_record(options.run)
    from gputop_analysis.report import report_data, report_text

    if options.json:
        print(json.dumps(report_data(record), indent=2, allow_nan=False))
    else:
        print(report_text(record, width=report_width(), colour=wants_colour()))
    return 0


def report_width() -> int:
    """Columns for text on stdout, at most 120 so that lines stay readable."""
    return min(120, shutil.get_terminal_size((100, 24)).columns)


def wants_colour() -> bool:
    """Whether stdout takes colour: a terminal, and NO_COLOR (no-color.org) is not set."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
