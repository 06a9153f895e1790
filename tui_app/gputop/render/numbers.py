"""Numbers as text of stable width: one that grows by a digit moves nothing beside it."""

from __future__ import annotations

import math

from gputop_analysis.text import MISSING

NONE = MISSING
"""Shown for what was not measured."""


def known(value: float | None) -> bool:
    """Whether there is a number to show."""
    return value is not None and not math.isnan(value)


def whole(value: float | None) -> str:
    """``1,234`` of whatever unit."""
    return f"{value:,.0f}" if known(value) else NONE


def ms(value: float | None) -> str:
    """Milliseconds in three or four digits, without unit: ``0.153``, ``12.41``, ``1,204``."""
    if value is None or math.isnan(value):
        return NONE
    for limit, digits in ((1, 3), (100, 2), (1000, 1)):
        if abs(value) < limit:
            return f"{value:.{digits}f}"
    if value < 1e6:
        return f"{value:,.0f}"
    return f"{value / 1000:,.0f}s"


def digits_for(largest_ms: float) -> int:
    """Decimals of a column with the largest value ``largest_ms``, so that points align."""
    if largest_ms < 1:
        return 3
    if largest_ms < 200:
        return 2
    if largest_ms < 10_000:
        return 1
    return 0


def ms_column(value: float | None, digits: int) -> str:
    """Milliseconds with a given number of decimals."""
    if value is None or math.isnan(value):
        return NONE
    return f"{value:,.{digits}f}"


def duration_ms(value: float | None) -> str:
    """Milliseconds with the unit that reads best: ``153 µs``, ``12.4 ms``, ``3.20 s``."""
    if value is None or math.isnan(value):
        return NONE
    if value < 1:
        return f"{value * 1000:.0f} µs"
    if value < 1000:
        if value < 100:
            return f"{value:.1f} ms"
        return f"{value:.0f} ms"
    if value < 1e5:
        return f"{value / 1000:.2f} s"
    return clock(value / 1000)


def clock(seconds: float | None) -> str:
    """``4:07``, ``1:04:07`` or ``3d 01:04``."""
    if seconds is None or math.isnan(seconds) or seconds < 0:
        return NONE
    total = int(seconds)
    days, remainder = divmod(total, 86400)
    hours, remainder = divmod(remainder, 3600)
    minutes, secs = divmod(remainder, 60)
    if days:
        return f"{days}d {hours:02d}:{minutes:02d}"
    if hours:
        return f"{hours}:{minutes:02d}:{secs:02d}"
    return f"{minutes}:{secs:02d}"


def span(seconds: float) -> str:
    """An amount of time in one unit: ``18 s``, ``4.2 min``, ``1.3 h``, ``2.1 d``."""
    for limit, scale, unit in ((90, 1, "s"), (5400, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            value = seconds / scale
            if unit == "s" or value >= 9.95:
                return f"{value:.0f} {unit}"
            return f"{value:.1f} {unit}"
    return f"{seconds / 86400:.1f} d"


def ago(seconds: float) -> str:
    """``just now``, ``5 min ago``, ``1 hour ago``, ``3 days ago``."""
    for unit, size in (("day", 86400), ("hour", 3600), ("min", 60)):
        if seconds >= size:
            count = int(seconds // size)
            return f"{count} {unit}{'s' if count > 1 and unit != 'min' else ''} ago"
    return "just now"


def rate(value: float | None) -> str:
    """A rate in at most five characters: ``0.42``, ``23.4``, ``187``, ``12.1k``, ``1.31M``."""
    if value is None or math.isnan(value):
        return NONE
    for limit, scale, unit in ((1e3, 1, ""), (1e6, 1e3, "k"), (1e9, 1e6, "M")):
        if abs(value) < limit * 0.9995:
            return _three_digits(value / scale) + unit
    return _three_digits(value / 1e9) + "G"


def _three_digits(value: float) -> str:
    magnitude = abs(value)
    if magnitude < 9.995:
        return f"{value:.2f}"
    if magnitude < 99.95:
        return f"{value:.1f}"
    return f"{value:.0f}"


def count(value: int | None) -> str:
    """An integer with thousands separators."""
    if value is None:
        return NONE
    return f"{value:,}"


def percent(share: float | None, digits: int = 0) -> str:
    """A share of 0..1 as percent, with a thin hint below one: ``58 %``, ``<1 %``."""
    if share is None or math.isnan(share):
        return NONE
    if digits == 0 and 0 < share < 0.005:
        return "<1 %"
    return f"{share * 100:.{digits}f} %"


def gib(value: float | None) -> str:
    """GiB with one digit, two below ten."""
    if value is None or math.isnan(value):
        return NONE
    if abs(value) < 9.995:
        return f"{value:.2f}"
    return f"{value:.1f}"


def scalar_in(value: float, cells: int) -> str:
    """The same with as many digits as fit into ``cells``."""
    texts = (scalar(value, digits) for digits in (4, 3, 2, 1))
    return next((text for text in texts if len(text) <= cells), scalar(value, 1))


def scalar(value: float | None, digits: int = 4) -> str:
    """A loss, a norm or a learning rate: four digits, an exponent where small or large."""
    if value is None or math.isnan(value):
        return NONE
    if value < 0:
        return "−" + scalar(-value, digits)
    if math.isinf(value):
        return "inf"
    if value == 0:
        return "0"
    if 1e-3 <= value < 1e5:
        if value < 10**digits - 0.5:
            return f"{value:.{digits}g}"
        return f"{value:.0f}"
    mantissa, exponent = f"{value:.{min(1, digits - 1)}e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def nice_ceiling(value: float) -> float:
    """The next of 1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8 x 10^n from ``value``: axes stay put."""
    if not value > 0 or math.isinf(value):
        return 1.0
    base = 10.0 ** math.floor(math.log10(value))
    return next(
        (m * base for m in (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10) if m * base >= value * 0.9999),
        10 * base,
    )
