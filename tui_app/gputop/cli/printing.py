"""How commands print: JSON, files, the width and colours of the terminal."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gputop.cli.errors import CliError


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Context in which a file is written.

    Raises:
        CliError: it cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise CliError(f"cannot write {path}: {error.strerror or error}") from None


def write_file(path: Path, text: str) -> None:
    """Write a whole file and say so.

    Raises:
        CliError: it cannot be written.
    """
    with writing(path):
        path.write_text(text, encoding="utf-8")
    print(f"wrote {path}", file=sys.stderr)


def print_json(data: Any) -> None:
    """JSON on stdout; NaN is refused, it is no JSON."""
    print(json_text(data), end="")


def json_text(data: Any) -> str:
    """JSON that people can read, ending with a line break."""
    return json.dumps(data, indent=2, allow_nan=False) + "\n"


def report_width() -> int:
    """Columns for text on stdout, at most 120 so that lines stay readable."""
    return min(120, shutil.get_terminal_size((100, 24)).columns)


def wants_colour() -> bool:
    """Whether stdout takes colour: a terminal, and NO_COLOR (no-color.org) is not set."""
    return (
        sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    )
