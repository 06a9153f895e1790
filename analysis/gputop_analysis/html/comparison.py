"""The comparison with a baseline as a section of the page."""

from __future__ import annotations

from html import escape

from gputop_analysis.diff import Diff, diff_text
from gputop_analysis.diff.settings import telling
from gputop_analysis.diff.text import headline
from gputop_analysis.html.elements import details, section, table
from gputop_analysis.stats import Interval
from gputop_analysis.text import ms, with_minus


def comparison(diff: Diff, of_page: bool = False) -> str:
    """Phases side by side, what was set differently, and the rest as the terminal has it.

    ``of_page``: the page is about nothing else, and has said the headline.
    """
    full_text = details("All of the comparison", f"<pre>{escape(diff_text(diff, 100))}</pre>")
    if of_page:
        return section("What differs", _phases(diff) + _changes(diff) + full_text)
    note = f"{headline(diff)}. A is {diff.a_name}, the baseline; B is this run."
    return section("Compared with the baseline", _phases(diff) + _changes(diff) + full_text, note)


def _phases(diff: Diff) -> str:
    if diff.speed is None:
        return ""
    rows = []
    for phase in diff.speed.phases:
        rows.append(
            (
                phase.name,
                ms(phase.a_ms),
                ms(phase.b_ms),
                _signed(phase.difference_ms.value),
                _interval(phase.difference_ms),
            )
        )
    return table(("phase", "A ms", "B ms", "B − A", "95 % interval"), rows)


def _changes(diff: Diff) -> str:
    rows = []
    for change in telling(diff.changes):
        rows.append((change.name, _setting_text(change.a), _setting_text(change.b)))
    if rows:
        return f"<h3>Set differently</h3>{table(('setting', 'A', 'B'), rows, left=(0, 1, 2))}"
    return ""


def _signed(value: float) -> str:
    return with_minus(f"{value:+.2f}")


def _interval(difference: Interval) -> str:
    return f"{_signed(difference.low)} to {_signed(difference.high)}"


def _setting_text(value: object) -> str:
    if value is None:
        return "not set"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return str(value)
