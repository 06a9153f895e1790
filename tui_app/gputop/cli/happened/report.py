"""``gputop report RUN``: a run for people, for the web, as data; its numbers' sources."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from gputop.cli.errors import CliError
from gputop.cli.happened.diff import add_threshold
from gputop.cli.happened.evidence import evidence_at, rendered
from gputop.cli.parsing import Parser
from gputop.cli.printing import json_text, report_width, wants_colour, write_file
from gputop.cli.records import open_record
from gputop.cli.working import working

if TYPE_CHECKING:
    from gputop_analysis.evidence import Evidence
    from gputop_analysis.report import Extra, Report
    from gputop_probes.record.reader import RunRecord

_USAGE = (
    "gputop report [RUN] [--json | --md | --html FILE | --watch | --patch [ID]] "
    "[--baseline RUN] [--trace FILE] [--explain [NAME]]"
)


def execute(words: list[str]) -> int:
    """Print the report of one run."""
    options = parser().parse_args(words)
    evidence = evidence_at(options.run)
    if evidence is not None:
        return _print_evidence(evidence, options)
    record = open_record(options.run, says_damage=False)
    if options.watch:
        return _watch(record, options)
    from gputop_analysis.report import Report

    with working("reading the run"):
        baseline = _baseline(record, options)
        report = Report(record, extras=_extras(record, baseline, options), baseline=baseline)
    if options.baseline is not None:
        report.view.baseline = open_record(options.baseline)
    if options.patch is not None:
        print(_patch(report, options.patch.upper()), end="")
        return 0
    if options.explain is not None:
        return _explain(report, options.explain, options.format == "json")
    return _print(report, options)


def parser() -> Parser:
    """Options of the command."""
    parser = Parser("report", "Print what a run shows.", usage=_USAGE)
    parser.add_run()
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--format",
        choices=("text", "json", "md"),
        default="text",
        help="text, json or md (Markdown)",
    )
    form.add_argument(
        "--json",
        dest="format",
        action="store_const",
        const="json",
        help="the same as --format json",
    )
    form.add_argument(
        "--md",
        "--markdown",
        dest="format",
        action="store_const",
        const="md",
        help="the same as --format md",
    )
    form.add_argument(
        "--html", type=Path, metavar="FILE", help="write one self-contained page with charts"
    )
    form.add_argument(
        "--watch", action="store_true", help="redraw it every second until the run ends or Ctrl-C"
    )
    form.add_argument(
        "--patch",
        nargs="?",
        const="",
        metavar="ID",
        help="print the patch that mends the finding, for `git apply` where the run was started; "
        "without an ID: of the first finding that has one",
    )
    parser.add_argument(
        "--baseline",
        metavar="RUN",
        help="compare with an earlier run; exit code 1 if this one is surely slower",
    )
    add_threshold(parser)
    parser.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="add the analysis of a torch.profiler trace (.json, .json.gz); one in the run's "
        "directory is found",
    )
    parser.add_argument(
        "--explain",
        nargs="?",
        const="",
        metavar="NAME",
        help="inputs, statistic, threshold and formula of a finding or figure; without a "
        "name: what there is",
    )
    return parser


def _print_evidence(evidence: Evidence, options: argparse.Namespace) -> int:
    """A report on what another tool recorded, in the form asked for."""
    for name in ("watch", "baseline", "trace", "explain", "patch"):
        if getattr(options, name) not in (None, False, ""):
            raise CliError(f"--{name} is for runs of gputop: {evidence.files[0]} is none")
    if options.html is not None:
        from gputop_analysis.evidence.html import as_html

        write_file(options.html, as_html(evidence))
    else:
        print(rendered(evidence, options.format), end="")
    return 0


def _patch(report: Report, id: str) -> str:
    """The patch of a finding, or of the first that has one.

    Raises:
        CliError: there is none; it says why.
    """
    from gputop_analysis.explain import raised_as
    from gputop_analysis.lint.mends import patch_of

    findings = raised_as(report, id) if id else report.findings
    if not findings:
        raise CliError(
            f"{id + ' was not' if id else 'nothing was'} "
            "raised in this run: nothing is to be mended"
        )
    patches = [(finding.id, patch_of(finding, report.record.manifest)) for finding in findings]
    for _, patch in patches:
        if patch.text:
            return patch.text
    raise CliError("; ".join(f"no patch for {name}: {patch.reason}" for name, patch in patches))


def _watch(record: RunRecord, options: argparse.Namespace) -> int:
    if any(option is not None for option in (options.explain, options.trace, options.baseline)):
        raise CliError(
            "--watch shows the plain report: --explain, --trace and --baseline go without it"
        )
    from gputop.cli.happened.report_watch import watch

    return watch(record, report_width, wants_colour())


def _baseline(record: RunRecord, options: argparse.Namespace) -> RunRecord | None:
    if options.baseline is None:
        return None
    from gputop.cli.happened.report_extras import open_baseline

    return open_baseline(options.baseline, record)


def _extras(
    record: RunRecord, baseline: RunRecord | None, options: argparse.Namespace
) -> tuple[Extra, ...]:
    if options.explain is not None:
        return ()
    from gputop.cli.happened.report_extras import baseline_extra, found_trace, trace_extra

    width, extras = report_width(), []
    if baseline is not None:
        colour = wants_colour() and options.format == "text"
        extras.append(baseline_extra(record, baseline, options.threshold, width, colour))
    if options.trace:
        trace = trace_extra(options.trace, width)
    else:
        trace = found_trace(record.path, width)
    return tuple(extras) if trace is None else (*extras, trace)


def _print(report: Report, options: argparse.Namespace) -> int:
    with working("judging the run"):
        text = _rendered(report, options)
    if options.html is not None:
        write_file(options.html, text)
    else:
        print(text, end="")
    return max((extra.exit_code for extra in report.extras), default=0)


def _rendered(report: Report, options: argparse.Namespace) -> str:
    """The report in the form asked for."""
    from gputop_analysis.report import as_data, as_markdown, as_text

    if options.html is not None:
        from gputop_analysis.html import as_html

        return as_html(report)
    if options.format == "json":
        return json_text(as_data(report))
    if options.format == "md":
        return as_markdown(report)
    return as_text(report, width=report_width(), colour=wants_colour()) + "\n"


def _explain(report: Report, name: str, as_json: bool) -> int:
    from gputop_analysis.explain import NotInReport, explain, explain_data, overview

    try:
        with working("judging the run"):
            if as_json and name:
                text = json_text(explain_data(report, name))
            elif name:
                text = explain(report, name, report_width()) + "\n"
            else:
                text = overview(report, report_width()) + "\n"
        print(text, end="")
    except NotInReport as error:
        raise CliError(error.args[0]) from None
    return 0
