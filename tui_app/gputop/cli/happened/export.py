"""``gputop export RUN``: a run as CSV, JSON, a picture or a timeline."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from gputop.cli.errors import CliError, cli_errors
from gputop.cli.parsing import Parser
from gputop.cli.printing import writing
from gputop.cli.records import find_readable, open_record
from gputop.cli.working import working

if TYPE_CHECKING:
    from gputop_probes.record.reader import RunRecord

FORMATS = ("csv", "json", "svg", "perfetto")
_ENDINGS = {"perfetto": "perfetto.json"}
"""Of file names, where it is not the format's name."""
_USAGE = "gputop export [RUN] [--format csv|json|svg|perfetto] [-o FILE] [--force]"


def execute(words: list[str]) -> int:
    """Write one run in the format asked for, to a file or a pipe."""
    options = parser().parse_args(words)
    form = _format(options)
    path = find_readable(options.run)
    output = _output(options.output, path, form, options.force)
    if form == "svg":
        with working("drawing the screen"):
            picture = _picture(path, options.size)
        return _write([picture], output)
    record = open_record(options.run)
    if options.rank is not None and options.rank not in record.ranks():
        raise CliError(
            f"no rank {options.rank} in this run: it has "
            f"{', '.join(map(str, record.ranks())) or 'none'}"
        )
    with working("writing the run"):
        return _write(_lines(record, form, options.rank), output)


def _lines(record: RunRecord, form: str, rank: int | None) -> Iterable[str]:
    """The run in one of the forms that are text."""
    if form == "perfetto":
        from gputop_analysis.timeline import to_timeline

        return to_timeline(record)
    from gputop_analysis.export import to_csv, to_json

    return [to_json(record)] if form == "json" else to_csv(record, rank)


def parser() -> Parser:
    """Options of the command."""
    parser = Parser(
        "export", "Write a run as CSV, JSON, SVG or a timeline for Perfetto.", usage=_USAGE
    )
    parser.elsewhere = "a file is named with -o"
    parser.add_run()
    parser.add_argument("--format", choices=FORMATS, help="default: by the name of FILE, else csv")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="write here; a folder takes a file named after the run. Default: stdout where "
        "that is a pipe or a file, on a terminal a file named after the run in the "
        "current folder",
    )
    parser.add_argument("--force", action="store_true", help="write over a file that is there")
    parser.add_argument("--rank", type=int, metavar="N", help="csv: only this rank")
    parser.add_argument(
        "--size", default="120x40", metavar="CxR", help="svg: columns and rows of the screen"
    )
    return parser


def _format(options: argparse.Namespace) -> str:
    """What was asked for, or what the file is called, or CSV."""
    if options.format:
        return options.format
    ending = ""
    if options.output:
        ending = options.output.suffix.removeprefix(".").lower()
    if ending and ending not in FORMATS and not options.output.is_dir():
        raise CliError(
            f"--output {options.output}: which format? give --format csv, json, svg or perfetto"
        )
    return ending if ending in FORMATS else FORMATS[0]


def _output(asked: Path | None, run: Path, form: str, force: bool) -> Path | None:
    """The file to write; None for stdout.

    Raises:
        CliError: it is there already.
    """
    if str(asked) == "-" or (asked is None and not sys.stdout.isatty()):
        return None
    if asked is not None and asked.is_dir():
        folder = asked
    elif asked is None:
        folder = Path()
    else:
        folder = None
    if asked is not None and folder is None:
        path = asked
    else:
        path = (folder or Path()) / f"gputop-{run.name}.{_ENDINGS.get(form, form)}"
    if path.exists() and not force and path.is_file():
        raise CliError(
            f"{path} is there already: give another name with -o, or --force to write over it"
        )
    return path


def _picture(path: Path, size: str) -> str:
    columns, _, rows = size.partition("x")
    if not (columns.isdigit() and rows.isdigit()) or not (
        40 <= int(columns) <= 400 and 12 <= int(rows) <= 200
    ):
        raise CliError(f"--size {size}: give columns x rows, for example 120x40 (40x12 to 400x200)")
    from gputop.app.export import svg

    with cli_errors(RuntimeError):
        return svg(path, (int(columns), int(rows)))


def _write(lines: Iterable[str], output: Path | None) -> int:
    if output is None:
        for line in lines:
            sys.stdout.write(line if line.endswith("\n") else line + "\n")
        return 0
    with writing(output), output.open("w", encoding="utf-8") as file:
        for line in lines:
            file.write(line if line.endswith("\n") else line + "\n")
    print(f"wrote {output}", file=sys.stderr)
    return 0
