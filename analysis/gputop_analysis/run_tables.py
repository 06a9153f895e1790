"""Tables of runs that others wrote: CSV with whichever separator and spelling of the columns."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from typing import NamedTuple

SEPARATORS = ",;\t|"
Row = dict[str, str]
"""Text of each cell by the plain name of its column."""


class RunTable(NamedTuple):
    """A table whose rows are read as they are asked for."""

    columns: list[str]
    """Plain names; none of an empty table."""
    rows: Iterator[Row]
    """Without cells beyond the columns. An unreadable row (a cell above 128 KiB) is empty."""


def read(lines: Iterable[str]) -> RunTable:
    """The table of these lines, of which the first that is not blank names the columns."""
    text = (line.replace("\0", "") for line in lines)
    header = next((line for line in text if line.strip()), "").removeprefix("\ufeff")
    separator = max(SEPARATORS, key=header.count)
    names = next(csv.reader([header], delimiter=separator), [])
    columns = [plain_name(name) for name in names]
    return RunTable(columns, _rows(text, columns, separator))


def plain_name(name: str) -> str:
    """``--micro-batch`` and ``Micro batch`` are ``micro_batch``."""
    return name.strip().lstrip("-").lower().replace("-", "_").replace(" ", "_")


def _rows(lines: Iterator[str], columns: list[str], separator: str) -> Iterator[Row]:
    reader = csv.reader(lines, delimiter=separator)
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error:
            yield {}
            continue
        if cells:
            values = [cell.strip() for cell in cells]
            yield dict(zip(columns, values, strict=False))
