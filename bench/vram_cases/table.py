"""The rows of a CSV file that others wrote: whichever separator, spelling of the columns and unit
they chose.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Iterator

MEASURED = "measured_peak_GiB"
_CANONICAL = {MEASURED.lower(): MEASURED}
_SEPARATORS = ",;\t|"
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


def rows(lines: Iterable[str]) -> Iterator[dict[str, str]] | None:
    """The rows under the columns' own names; None where no column says what was measured or what
    ran out of memory.
    """
    text = (line.replace("\0", "") for line in lines)
    head = next((line for line in text if line.strip()), "").removeprefix("\ufeff")
    separator = max(_SEPARATORS, key=head.count)
    written = next(csv.reader([head], delimiter=separator), [])
    names = [_name(column) for column in written]
    if not {MEASURED, "oom"} & set(names):
        return None
    return _rows(text, names, separator, _unit_of_column(written))


def _rows(
    lines: Iterable[str], names: list[str], separator: str, unit: str
) -> Iterator[dict[str, str]]:
    reader = csv.reader(lines, delimiter=separator)
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error:  # a cell beyond the reader's limit
            continue
        if any(cell.strip() for cell in cells):
            row = dict(zip(names, cells, strict=False))
            yield (
                {**row, MEASURED: f"{row[MEASURED]} {unit}".strip()}
                if unit and row.get(MEASURED)
                else row
            )


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


def _name(column: str) -> str:
    plain = re.sub(r"[\s\-]+", "_", column.strip().lower())
    return (
        MEASURED
        if re.fullmatch(r"measured_peak(_[kmgt]?i?b|_bytes)?", plain)
        else _CANONICAL.get(plain, plain)
    )


def _unit_of_column(columns: list[str]) -> str:
    """The unit that the column of the measurement names, where it is not GiB."""
    name = next((column.strip().lower() for column in columns if _name(column) == MEASURED), "")
    unit = name.removeprefix("measured_peak").strip("_ -")
    return "" if unit in ("", "gib", "gb") else unit
