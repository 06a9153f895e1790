"""Checks of what a JSON file holds against what it should: wrong types are dropped and counted,
text is made plain.

A check takes a value and a tally, and gives the value, or ``DROP``. Standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from gputop_probes.record.plain import plain_line, plain_text

DROP: Any = object()
"""What a check gives for a value that may not stay."""
MAX_TEXT = 65_536
MAX_ITEMS = 10_000
MAX_DEPTH = 16
MAX_NAMED = 5
"""Fields of wrong types that are named; the rest is counted."""
_MAX_INT = 2**64
_MAX_NUMBER = 1e300


@dataclass
class Tally:
    """How much was dropped, and the first fields that it was dropped from."""

    dropped: int = 0
    fields: list[str] = field(default_factory=list)

    def name(self, wrong: str) -> None:
        """Remember a field's name, where there is room."""
        if len(self.fields) < MAX_NAMED and wrong not in self.fields:
            self.fields.append(wrong)


Check = Callable[[Any, Tally], Any]


def integer(value: Any, tally: Tally) -> Any:
    """A whole number of at most 64 bits."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _MAX_INT:
        return value
    return _drop(tally)


def count(value: Any, tally: Tally) -> Any:
    """A whole number from 0 to 2^63 - 1."""
    number = integer(value, tally)
    if number is DROP or 0 <= number < 2**63:
        return number
    return _drop(tally)


def number(value: Any, tally: Tally) -> Any:
    """A finite number."""
    plain = isinstance(value, (int, float)) and not isinstance(value, bool)
    if plain and abs(value) <= _MAX_NUMBER:  # NaN fails too
        return value
    return _drop(tally)


def real(value: Any, tally: Tally) -> Any:
    """A number, also NaN or infinite."""
    if isinstance(value, float) and not math.isfinite(value):
        return value
    return number(value, tally)


def amount(value: Any, tally: Tally) -> Any:
    """A number from 0 to 10^18: a duration, a size, a count."""
    number_ = number(value, tally)
    if number_ is DROP or 0 <= number_ <= 1e18:
        return number_
    return _drop(tally)


def flag(value: Any, tally: Tally) -> Any:
    """True or false."""
    return value if isinstance(value, bool) else _drop(tally)


def line(value: Any, tally: Tally) -> Any:
    """Text in one line."""
    if isinstance(value, str):
        return plain_line(value[:MAX_TEXT])
    return _drop(tally)


def text(value: Any, tally: Tally) -> Any:
    """Text of any number of lines."""
    if isinstance(value, str):
        return plain_text(value[:MAX_TEXT])
    return _drop(tally)


def scalar(value: Any, tally: Tally) -> Any:
    """A flag, a number or a line."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return line(value, tally)
    return real(value, tally)


def anything(value: Any, tally: Tally, depth: int = 0) -> Any:
    """Any JSON value that is not too deep, with plain text."""
    if isinstance(value, str):
        return text(value, tally)
    if value is None or isinstance(value, (bool, int, float)):
        return value if value is None else scalar(value, tally)
    if depth >= MAX_DEPTH or len(value) > MAX_ITEMS:
        return _drop(tally)
    if isinstance(value, dict):
        items = (
            (plain_line(str(k)[:MAX_TEXT]), anything(v, tally, depth + 1)) for k, v in value.items()
        )
        return {k: v for k, v in items if v is not DROP}
    return [v for item in value if (v := anything(item, tally, depth + 1)) is not DROP]


def one_of(*checks: Check) -> Check:
    """The first check that takes the value."""

    def check(value: Any, tally: Tally) -> Any:
        for check_ in checks:
            checked = check_(value, Tally())
            if checked is not DROP:
                return checked
        return _drop(tally)

    return check


def exactly(*values: Any) -> Check:
    """One of these values."""
    return lambda value, tally: (
        value if isinstance(value, str) and value in values else _drop(tally)
    )


def between(low: int, high: int) -> Check:
    """A whole number from ``low`` to ``high``."""

    def check(value: Any, tally: Tally) -> Any:
        number = integer(value, tally)
        if number is DROP or low <= number <= high:
            return number
        return _drop(tally)

    return check


def many(item: Check, at_most: int = MAX_ITEMS) -> Check:
    """A list; items that may not stay are left out."""

    def check(value: Any, tally: Tally) -> Any:
        if not isinstance(value, list):
            return _drop(tally)
        tally.dropped += len(value) > at_most
        return [
            checked for element in value[:at_most] if (checked := item(element, tally)) is not DROP
        ]

    return check


def mapping(item: Check, at_most: int = MAX_ITEMS) -> Check:
    """An object with names of its own; null and what may not stay are left out."""

    def check(value: Any, tally: Tally) -> Any:
        if not isinstance(value, dict) or len(value) > at_most:
            return _drop(tally)
        checked = (
            (plain_line(name[:MAX_TEXT]), item(v, tally))
            for name, v in value.items()
            if v is not None
        )
        return {name: v for name, v in checked if v is not DROP}

    return check


def record(fields: dict[str, Check], needs: Iterable[str] = ()) -> Check:
    """An object with these fields. Null counts as missing, unknown fields pass as they are (but
    plain).

    Args:
        fields: check by name.
        needs: fields without which the object may not stay.
    """
    needed = tuple(needs)

    def check(value: Any, tally: Tally) -> Any:
        if not isinstance(value, dict) or len(value) > MAX_ITEMS:
            return _drop(tally)
        fields_: dict[str, Any] = {}
        for name, item in value.items():
            if item is None:
                continue
            value_ = fields.get(name, anything)(item, tally)
            if value_ is not DROP:
                fields_[name if name in fields else plain_line(name[:MAX_TEXT])] = value_
            elif name in fields:
                tally.name(name)
        if all(name in fields_ for name in needed):
            return fields_
        return _drop(tally)

    return check


KINDS: dict[str, Check] = {
    "int": integer,
    "count": count,
    "num": number,
    "real": real,
    "amount": amount,
    "flag": flag,
    "line": line,
    "text": text,
    "scalar": scalar,
    "lines": many(line),
    "texts": many(text),
    "ints": many(integer),
    "numbers": many(number),
    "counts": mapping(amount),
    "scalars": mapping(scalar),
}
"""Names of checks for ``named``."""


def named(words: str) -> dict[str, Check]:
    """Fields as ``name:kind`` words."""
    pairs = (word.split(":") for word in words.split())
    return {name: KINDS[type_name] for name, type_name in pairs}


def _drop(tally: Tally) -> Any:
    tally.dropped += 1
    return DROP
