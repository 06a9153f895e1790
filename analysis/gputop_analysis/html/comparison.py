"""The comparison with a baseline as a section of the page."""

from __future__ import annotations

from html import escape

from gputop_analysis.diff import Diff, diff_text
from gputop_analysis.diff.settings import telling
from gputop_analysis.diff.text import headline
from gputop_analysis.html.elements import details, section, table
from gputop_analysis.stats import Interval
from gputop_analysis.text import ms


def comparison(diff: Diff) -> str:
    """Phases side by side, what was set differently, and the rest as the terminal has it."""
    whole = details("All of the comparison", f"<pre>{escape(diff_text(diff, 100))}</pre>")
    note = f"{headline(diff)}. A is {diff.a_name}, the baseline; B is this run."
    return section("Compared with the baseline", _phases(diff) + _changes(diff) + whole, note)


def _phases(diff: Diff) -> str:
    if diff.speed is None:
        return ""
    rows = [
        (_name(one.name), ms(one.a_ms), ms(one.b_ms), _signed(one.difference_ms.value), _interval(one.difference_ms))
        for one in diff.speed.phases
    ]
    return table(("phase", "A ms", "B ms", "B - A", "95 % interval"), rows)


def _changes(diff: Diff) -> str:
    rows = [(one.name, _said(one.a), _said(one.b)) for one in telling(diff.changes)]
    return f"<h3>Set differently</h3>{table(('setting', 'A', 'B'), rows, left=(0, 1, 2))}" if rows else ""


def _name(phase: str) -> str:
    return "exposed wait" if phase == "wait" else phase


def _signed(value: float) -> str:
    return f"{value:+.2f}"


def _interval(difference: Interval) -> str:
    return f"{_signed(difference.low)} to {_signed(difference.high)}"


def _said(value: object) -> str:
    return "not set" if value is None else str(value)
