"""``gputop lint train.py``: what a training script will waste, from its source alone."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gputop.cli.errors import CliError, cli_errors
from gputop.cli.notices import notice
from gputop.cli.parsing import Parser
from gputop.cli.printing import writing

if TYPE_CHECKING:
    from gputop_analysis.lint import Remark

_SKIPPED = {"__pycache__", "node_modules", "site-packages", "build", "dist", "venv"}
_USAGE = "gputop lint FILE|DIRECTORY ... [--diff | --fix] [--rule ID] [--json]"


def execute(words: list[str]) -> int:
    """Print the remarks; 0 where none is above info, else 1. Nothing is run."""
    options = parser().parse_args(words)
    if options.rules:
        _print_rules(options.json)
        return 0
    chosen = _chosen(options.rule)
    remarks: list[Remark] = []
    for path in _files(options.paths):
        data = _read(path)
        try:
            remarks_ = _lint(path, data, chosen)
        except CliError as error:
            if path in options.paths:
                raise
            # one of a directory's, perhaps a template
            notice(f"left out {error}")
            continue
        if options.fix or options.diff:
            remaining = _mend(path, data, chosen, options)
            remarks_ = remaining if options.fix else remarks_
        remarks += remarks_
    if options.json:
        print(json.dumps([_entry(remark) for remark in remarks], indent=2))
    elif not options.diff:
        _print_remarks(remarks)
    return 1 if any(remark.severity != "info" for remark in remarks) else 0


def parser() -> Parser:
    """Options of the command."""
    parser = Parser(
        "lint",
        "Read training scripts for what will cost time or memory. Nothing is executed.",
        _USAGE,
    )
    parser.add_argument(
        "paths", nargs="*", type=Path, metavar="FILE|DIRECTORY", help="scripts, or folders of them"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--fix", action="store_true", help="make the mechanical edits in the files")
    form.add_argument(
        "--diff", action="store_true", help="print them as a patch that `git apply` takes"
    )
    parser.add_argument(
        "--rule", action="append", metavar="ID", help="only this rule (may be given again)"
    )
    parser.add_argument("--rules", action="store_true", help="list the rules")
    parser.add_argument("--json", action="store_true", help="print the remarks as JSON")
    return parser


def _chosen(names: list[str] | None) -> frozenset[str] | None:
    from gputop_analysis.lint import all_rules

    unknown = sorted(set(names or ()) - all_rules().keys())
    if unknown:
        raise CliError(f"no rule {unknown[0]!r}: `gputop lint --rules` lists them")
    return frozenset(names) if names else None


def _files(paths: list[Path]) -> Iterator[Path]:
    """The files meant; in directories every ``.py``, without hidden and foreign ones."""
    if not paths:
        raise CliError("no file: say what to read, for example `gputop lint train.py`")
    for path in paths:
        if path.is_dir():
            files = sorted(
                file for file in path.rglob("*.py") if not _is_foreign(file.relative_to(path))
            )
            if not files:
                raise CliError(f"no Python file in {path}")
            yield from files
        else:
            yield path


def _is_foreign(path: Path) -> bool:
    return any(part in _SKIPPED or part.startswith(".") for part in path.parts)


def _read(path: Path) -> bytes:
    from gputop_analysis.lint.source import LARGEST_BYTES

    try:
        with path.open("rb") as file:
            return file.read(LARGEST_BYTES + 1)  # a device may have no end
    except OSError as error:
        raise CliError(f"cannot read {path}: {error.strerror or error}") from None


def _lint(path: Path, data: bytes, chosen: frozenset[str] | None) -> list[Remark]:
    from gputop_analysis.lint import SourceError, lint

    with cli_errors(SourceError):
        return [
            remark for remark in lint(str(path), data) if chosen is None or remark.rule in chosen
        ]


def _mend(
    path: Path, data: bytes, chosen: frozenset[str] | None, options: argparse.Namespace
) -> list[Remark]:
    """Write the edits, or print them as a patch. Returns the remarks that are left after them."""
    from gputop_analysis.lint import diff, fixed, write

    changed = fixed(str(path), data, chosen)
    if options.diff:
        sys.stdout.buffer.write(diff(os.path.relpath(path), data, changed))
        sys.stdout.buffer.flush()
    elif changed != data:
        with writing(path):
            write(path, changed)
        notice(f"mended {path}")
    return _lint(path, changed, chosen)


def _print_remarks(remarks: Iterable[Remark]) -> None:
    from gputop.cli.printing import report_width
    from gputop_analysis.text import counted, wrap

    width, count, fixable = report_width(), 0, 0
    for remark in remarks:
        count, fixable = count + 1, fixable + remark.fixable
        finding = f" ({remark.finding})" if remark.finding else ""
        print(
            f"{remark.path}:{remark.line}:{remark.column}: {remark.severity}: {remark.message} "
            f"[{remark.rule}]{finding}"
        )
        for label, text in (("why", remark.why), ("fix", remark.fix)):
            head = f"    {label}: "
            print("\n".join(wrap(text, width, initial_indent=head, subsequent_indent=" " * 9)))
    if count:
        hint = ""
        if fixable:
            hint = f"; --fix mends {fixable} of them, --diff shows how"
        notice(f"{counted(count, 'remark')}{hint}")
    else:
        notice("nothing to remark")


def _print_rules(as_json: bool) -> None:
    from gputop_analysis.lint import all_rules

    rules = all_rules().values()
    if as_json:
        fields = ("id", "finding", "severity", "why")
        data = [{name: getattr(rule, name) for name in fields} for rule in rules]
        print(json.dumps(data, indent=2))
        return
    width = max(len(rule.id) for rule in rules)
    for rule in rules:
        print(f"{rule.id:<{width}}  {rule.finding or '-':<4}  {rule.severity:<6}  {rule.why}")


def _entry(remark: Remark) -> dict[str, Any]:
    names = (
        "rule",
        "finding",
        "severity",
        "path",
        "line",
        "column",
        "end_line",
        "message",
        "why",
        "fix",
        "fixable",
    )
    return {name: getattr(remark, name) for name in names}
