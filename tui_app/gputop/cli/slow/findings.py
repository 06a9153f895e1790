"""``gputop findings [ID]``: every finding that gputop knows, or one of them explained."""

from __future__ import annotations

import difflib
import json
import sys

from gputop.cli.errors import CliError
from gputop.cli.parsing import Parser

_USAGE = "gputop findings [ID] [--json | --md]"
_WHOLE = 1000
"""Columns where a pipe or a file takes lines as they are."""


def execute(words: list[str]) -> int:
    """Print the catalogue, or one line of it."""
    options = parser().parse_args(words)
    from gputop.cli.printing import report_width
    from gputop_analysis import catalogue

    if options.markdown:
        print(catalogue.as_markdown(), end="")
        return 0
    if options.id is None:
        chosen = catalogue.specs()
    else:
        chosen = [_named(options.id)]
    if options.json:
        entries = [catalogue.entry(spec) for spec in chosen]
        print(json.dumps(entries if options.id is None else entries[0], indent=2))
    elif options.id is None:
        print(catalogue.as_list(report_width() if sys.stdout.isatty() else _WHOLE))
    else:
        print(catalogue.as_text(chosen[0], report_width()))
    return 0


def parser() -> Parser:
    """Options of the command."""
    parser = Parser(
        "findings",
        "List every finding that gputop knows, or explain one.",
        usage=_USAGE,
    )
    parser.add_argument(
        "id", nargs="?", metavar="ID", help="a finding's id or name, as IN01 or input-bound"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print it as JSON")
    form.add_argument(
        "--markdown", "--md", action="store_true", help="print the page docs/findings.md"
    )
    return parser


def _named(word: str):
    from gputop_analysis.findings import CATALOGUE

    if word.upper() in CATALOGUE:
        return CATALOGUE[word.upper()]
    names = {spec.name.lower(): spec for spec in CATALOGUE.values()}
    if word.lower() in names:
        return names[word.lower()]
    near = difflib.get_close_matches(word.upper(), CATALOGUE, n=1) or difflib.get_close_matches(
        word.lower(), names, n=1
    )
    hint = "`gputop findings` lists them"
    if near:
        hint = f"did you mean {near[0]}?"
    raise CliError(f"no finding {word!r}: {hint}")
