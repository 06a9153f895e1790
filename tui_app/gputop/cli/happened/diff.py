"""``gputop diff A B``: what changed between two runs, what got slower, and a verdict for CI."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from gputop.cli.parsing import Parser
from gputop.cli.records import open_record, refuse_without_steps

_USAGE = "gputop diff A B [--threshold 5%] [--json | --html FILE]"


def execute(words: list[str]) -> int:
    """Print the comparison. Returns 1 where B is surely too slow, or its loss became NaN."""
    options = parser().parse_args(words)
    a, b = open_record(options.a), open_record(options.b)
    for name, record in ((options.a, a), (options.b, b)):
        refuse_without_steps(record, f"run {name}")
    from gputop.cli.printing import print_json, report_width, wants_colour, write_file
    from gputop.cli.working import working

    with working("comparing the runs"):
        from gputop_analysis.changed_findings import with_findings
        from gputop_analysis.diff import compare, diff_data, diff_text

        comparison = with_findings(compare(a, b, options.threshold), a, b)
        page = ""
        if options.html is not None:
            from gputop_analysis.html import as_comparison_page
            from gputop_analysis.report import Report

            page = as_comparison_page(Report(a), Report(b), comparison)
    if options.html is not None:
        write_file(options.html, page)
    elif options.json:
        text = json.dumps(diff_data(comparison), default=str)
        print_json(json.loads(text, parse_constant=lambda _: None))  # NaN: not known
    else:
        print(diff_text(comparison, report_width(), wants_colour()))
    return comparison.exit_code


def parser() -> Parser:
    """Options of the command."""
    parser = Parser(
        "diff",
        "Compare run B with the earlier run A; exit code 1 where B is slower, or its loss NaN.",
        usage=_USAGE,
    )
    parser.example = "gputop diff last~1 last"
    parser.add_argument("a", metavar="A", help="the baseline: a run's name or directory")
    parser.add_argument("b", metavar="B", help="the run to judge")
    add_threshold(parser)
    forms = parser.add_mutually_exclusive_group()
    forms.add_argument("--json", action="store_true", help="print the comparison as JSON")
    forms.add_argument(
        "--html", type=Path, metavar="FILE", help="write one page with both runs side by side"
    )
    return parser


def add_threshold(parser: argparse.ArgumentParser) -> None:
    """The option that says from which slowdown on it is a regression."""
    parser.add_argument(
        "--threshold",
        type=fraction,
        default=0.05,
        metavar="P",
        help="slowdown from which on it is a regression: 5%% or 0.05 (default 5%%)",
    )


def fraction(text: str) -> float:
    """``5%``, ``5 %`` or ``0.05`` as 0.05."""
    number, percent = text.strip().removesuffix("%").strip(), text.strip().endswith("%")
    try:
        value = float(number) / (100 if percent else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no share: give 5% or 0.05")
    if not percent and value >= 1:
        raise argparse.ArgumentTypeError(
            f"{text!r} would be {100 * value:.0f} % slower: write {number}% if that is meant"
        )
    return value
