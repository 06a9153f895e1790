"""``gputop export RUN``: a run as JSON, CSV or a picture."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from gputop.cli.errors import CliError
from gputop.cli.parsing import Parser
from gputop.cli.records import find_readable, open_record


def execute(words: list[str]) -> int:
    """Write one run in the format asked for, to stdout or a file."""
    parser = Parser(
        "export", "Write a run as JSON, CSV or SVG.", usage="gputop export [RUN] --format json|csv|svg [-o FILE]"
    )
    parser.add_run()
    parser.add_argument("--format", required=True, choices=("json", "csv", "svg"))
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write here (default: stdout)")
    parser.add_argument("--rank", type=int, metavar="N", help="csv: only this rank")
    parser.add_argument("--size", default="120x40", metavar="CxR", help="svg: columns and rows of the screen")
    options = parser.parse_args(words)
    if options.format == "svg":
        return _write([_picture(options.run, options.size)], options.output)
    record = open_record(options.run)
    if options.rank is not None and options.rank not in record.ranks():
        raise CliError(f"no rank {options.rank} in this run: it has {', '.join(map(str, record.ranks())) or 'none'}")
    from gputop_analysis.export import to_csv, to_json

    return _write([to_json(record)] if options.format == "json" else to_csv(record, options.rank), options.output)


def _picture(run: str, size: str) -> str:
    columns, _, rows = size.partition("x")
    if not (columns.isdigit() and rows.isdigit()) or not (40 <= int(columns) <= 400 and 12 <= int(rows) <= 200):
        raise CliError(f"--size {size}: give columns x rows, for example 120x40 (40x12 to 400x200)")
    path = find_readable(run)
    from gputop.app.export import svg

    try:
        return svg(path, (int(columns), int(rows)))
    except RuntimeError as error:
        raise CliError(str(error)) from None


def _write(lines: Iterable[str], output: Path | None) -> int:
    if output is None:
        for line in lines:
            sys.stdout.write(line if line.endswith("\n") else line + "\n")
        return 0
    try:
        with output.open("w", encoding="utf-8") as file:
            for line in lines:
                file.write(line if line.endswith("\n") else line + "\n")
    except OSError as error:
        raise CliError(f"cannot write {output}: {error.strerror}") from None
    print(f"wrote {output}", file=sys.stderr)
    return 0
