"""The rows of a CSV file that others wrote: whichever separator, spelling of the columns and unit
they chose.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator

from gputop_analysis import run_tables
from gputop_analysis.run_tables import Row

MEASURED = "measured_peak_GiB"
_MEASURED = re.compile(r"measured_peak(_[kmgt]?i?b|_bytes)?")
_GIB = {"": 1.0, "g": 1.0, "k": 2.0**-20, "m": 2.0**-10, "t": 2.0**10}
"""By the letter of a unit. ``GB`` is taken as GiB, as PyTorch, nvidia-smi and the reports that
quote them mean it.
"""
_AMOUNT = re.compile(
    r"([-+]?[\d.]+(?:e[-+]?\d+)?)\s*(?:([kmgt]?)i?b(?:ytes)?|(bytes?))?", re.IGNORECASE
)
_UNIT = re.compile(r"(?<![a-z_.])(?:([kmgt])i?b|(bytes))(?![a-z])", re.IGNORECASE)
MOST_GIB = 2048.0
"""Beyond the memory of any GPU: a number in another unit, or none at all."""


def rows(lines: Iterable[str]) -> Iterator[Row] | None:
    """The rows, ``MEASURED`` with its unit; None where no column says what was measured or what
    ran out of memory.
    """
    table = run_tables.read(lines)
    column = next(filter(_MEASURED.fullmatch, table.columns), "")
    if not column and "oom" not in table.columns:
        return None
    return _named(table.rows, column)


def _named(table_rows: Iterator[Row], column: str) -> Iterator[Row]:
    unit = _unit_of_column(column)
    for row in table_rows:
        if not any(row.values()):
            continue
        if column in row:
            measured = row.pop(column)
            row[MEASURED] = f"{measured} {unit}".strip() if measured else ""
        yield row


def gib(cell: str, metric: str) -> float | None:
    """An amount of memory in GiB; None where the cell holds none that a GPU can have.

    Args:
        cell: a number, maybe with separators of thousands and a unit, after ``~`` or the like.
        metric: what was measured, which may name the unit.
    """
    plain = re.sub(r"(?<=\d),(?=\d{3}(\D|$))", "", cell.strip().lstrip("~≈≃ "))
    found = _AMOUNT.fullmatch(re.sub(r"(?<=\d),(?=\d{1,2}(\D|$))", ".", plain))
    if found is None:
        return None
    try:
        value = float(found[1])
    except ValueError:
        return None
    own = "bytes" if found[3] or (found[2] == "" and found[0] != found[1]) else found[2]
    said = _UNIT.search(metric)
    unit = own if own is not None else ("bytes" if said and said[2] else said[1] if said else "")
    value *= 2.0**-30 if unit == "bytes" else _GIB[unit.lower()]
    return value if math.isfinite(value) and 0 < value <= MOST_GIB else None


def _unit_of_column(column: str) -> str:
    """The unit that the column of the measurement names, where it is not GiB."""
    unit = column.removeprefix("measured_peak").strip("_")
    return "" if unit in ("", "gib", "gb") else unit
