"""Numbers as people write them: ``100B``, ``15T``, ``1e12``, ``1,000,000``, seconds."""

from __future__ import annotations

import argparse
import re

_SCALES = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}
_NUMBER = re.compile(
    r"(\d[\d,_]*\.?\d*(?:e[+-]?\d+)?|\.\d+(?:e[+-]?\d+)?)\s*([kmbgt]?)", re.IGNORECASE
)
_DAYS_FROM_H = 48.0


def amount(text: str) -> float:
    """A positive number with or without a letter for its size; an argparse type."""
    match = _NUMBER.fullmatch(text.strip())
    if match:
        value = float(match[1].replace(",", "").replace("_", "")) * _SCALES[match[2].lower()]
    else:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no number above 0: write it as 100B, 15T or 1e12"
        )
    return value


def short(value: float) -> str:
    """``15T``, ``1.5B``, ``820``: at most four digits."""
    for letter, scale in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= scale:
            return f"{value / scale:,.4g}{letter}"
    return f"{value:,.4g}"


def long_time(hours: float) -> str:
    """``66 days`` from two days on, ``1 h 20 min`` below."""
    if hours >= _DAYS_FROM_H:
        if hours >= 240:
            return f"{hours / 24:,.0f} days"
        return f"{hours / 24:.1f} days"
    return f"{hours:.1f} h" if hours >= 1 else f"{60 * hours:.0f} min"


def dollars(value: float) -> str:
    """``$0.07``, ``$4.76``, ``$121,473``."""
    return f"${value:,.2f}" if value < 1000 else f"${value:,.0f}"


def positive_seconds(text: str) -> float:
    """A number of seconds above 0.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no positive number of seconds")
    return seconds
