"""``gputop why PATH``: the cause that matters most, of a run or another tool's file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gputop.cli.happened.evidence import evidence_at, evidence_text
from gputop.cli.parsing import Parser
from gputop.cli.printing import print_json, report_width, wants_colour
from gputop.cli.working import working

if TYPE_CHECKING:
    from gputop_analysis.model import Finding
    from gputop_analysis.report import Report


def parser() -> Parser:
    """Options of the command."""
    parser = Parser(
        "why", "Say why a training is slow, in one verdict.", usage="gputop why [PATH|RUN] [--json]"
    )
    parser.add_argument(
        "run",
        nargs="?",
        default="last",
        metavar="PATH|RUN",
        help="a file or folder of another tool's recordings, or a run's name or directory",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def execute(words: list[str]) -> int:
    """Print the verdict."""
    options = parser().parse_args(words)
    evidence = evidence_at(options.run)
    if evidence is None:
        return _of_run(options.run, options.json)
    if options.json:
        print_json(evidence.why())
    else:
        print(evidence_text(evidence))
    return 0


def _host(report: Report, first: Finding | None) -> str | None:
    """Where the finding's rank ran."""
    if first is None or first.host or first.rank is None:
        return None if first is None else first.host
    return report.view.host_of(first.rank) or None


def _of_run(name: str, as_json: bool) -> int:
    """The first finding of a run; what a run's figures do not split is left empty."""
    from gputop.cli.records import open_record
    from gputop_analysis.report import Report
    from gputop_analysis.report.text import verdict_text
    from gputop_analysis.text import counted
    from gputop_probes.runs import shell_name

    record = open_record(name)
    with working("judging the run"):
        report = Report(record)
        first = report.findings[0] if report.findings else None
    if as_json:
        print_json(
            {
                "cause": first.name if first else "nothing stands out",
                "rank": first.rank if first else None,
                "host": _host(report, first),
                "slowdown": None,
                "by_worker": {},
                "by_stage": {},
                "by_operation": {},
                "title": first.title if first else None,
                "site": first.site if first else None,
                "fix": first.fix if first else None,
            }
        )
        return 0
    print(verdict_text(report, report_width(), wants_colour()))
    further = "all figures"
    if len(report.findings) > 1:
        further = f"{counted(len(report.findings) - 1, 'other finding')} and {further}"
    print(f"\n{further}: gputop report {shell_name(record.path)}")
    return 0
