"""CSV cells that a spreadsheet takes for text: a formula's begin gets an apostrophe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gputop_probes.record.plain import plain_line

_BEGINNINGS = ("=", "+", "-", "@", "\t", "\r")


def cell(value: Any) -> Any:
    """A value as a cell: numbers as they are, text in one plain line that no
    spreadsheet evaluates.
    """
    if not isinstance(value, str):
        return value
    text = plain_line(value)
    if value.startswith(_BEGINNINGS) and not _is_number(value):
        return f"'{text}"
    return text


def cells(row: Mapping[str, Any]) -> dict[str, Any]:
    """The same for a row."""
    return {cell(name): cell(value) for name, value in row.items()}


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
