"""What each optimisation would win on this very configuration, as a dialog to read and copy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from textual.content import Content

from gputop.render.rows import wrap
from gputop.screens.dialog import TextDialog, Words, text_columns
from gputop_analysis.text import signed_percent, with_minus

if TYPE_CHECKING:
    from gputop.feed.whatif import WhatIf
    from gputop_analysis.planner.whatif import Change

WON = -1.0
"""Percent of the step: what takes off more is marked as a gain."""
ALIKE_PCT, ALIKE_GIB = 0.15, 0.05
"""Changes below these are none: the step and the memory beside them read the same."""
GAIN, NO_FIT = "+ ", "✖ "
"""Before a change, so that colour is not all that tells them apart."""
NAME, FIGURES = 44, 42
"""Columns of a change's name at most, and of its figures."""
COST, LEAST_NAME = 10, 12
"""Columns of the last figure, which is left out where names would have fewer than these."""


class WhatIfDialog(TextDialog):
    """All changes of a configuration; ``colours``: the theme's."""

    def __init__(self, what_if: WhatIf, colours: Mapping[str, str]):
        self._what_if = what_if
        self._colours = colours
        super().__init__(what_if.title, self._changes_at)

    def _changes_at(self, size: tuple[int, int]) -> Words:
        """The table in a terminal of that size."""
        width = text_columns(size[0])
        rows = table(self._what_if, width)
        now_lines = [(line, "muted") for line in [*wrap(self._what_if.now, width), ""]]
        body = [
            Content.styled(text, self._colours[f"role-{role}"])
            for text, role in [*now_lines, *rows]
        ]
        title_and_now = [self._what_if.title, self._what_if.now, ""]
        plain = "\n".join([*title_and_now, *(text for text, _ in rows)])
        return Words(Content("\n").join(body), plain)


def table(what_if: WhatIf, width: int) -> list[tuple[str, str]]:
    """Lines of at most ``width`` columns with the role of their colour, the fastest first; those
    that fit no GPU and those that break a rule at the end.
    """
    has_cost = width - FIGURES - 2 >= LEAST_NAME
    name = min(NAME, width - FIGURES - 2 + (0 if has_cost else COST))
    cost = "no rent"
    if what_if.usd_per_million_tokens is not None:
        cost = "$/Mtok"
    if not has_cost:
        cost = ""
    can = sorted(
        (change for change in what_if.changes if not change.rule),
        key=lambda change: (not change.fits, change.step_s),
    )
    head = f"  {'each alone':<{name}}{'step':>8}{'change':>9}{'GiB':>7}{'change':>8}{_cost(cost)}"
    rows = [(head, "muted")]
    rows += [_row(change, what_if, name, has_cost) for change in can]
    meanings = []
    if any(_mark(change) == GAIN for change in can):
        meanings.append((f"{GAIN}takes more than {-WON:g} % off the step", "muted"))
    if any(_mark(change) == NO_FIT for change in can):
        meanings.append((f"{NO_FIT}does not fit into the GPU's memory", "muted"))
    if meanings:
        rows += [("", "muted"), *meanings]
    rows += [
        (f"not {change.name}: {change.rule}", "muted") for change in what_if.changes if change.rule
    ]
    return rows


def _cost(text: str) -> str:
    return f"{text:>{COST}}" if text else ""


def _row(change: Change, what_if: WhatIf, name: int, has_cost: bool) -> tuple[str, str]:
    if change.step_s >= 1:
        step = f"{change.step_s:.2f} s"
    else:
        step = f"{1e3 * change.step_s:.0f} ms"
    rent = what_if.usd_per_million_tokens
    if rent is None or not has_cost:
        cost = ""
    else:
        cost = f"{rent * change.step_s / change.before_s:.3f}"
    faster = signed_percent(change.step_pct / 100) if abs(change.step_pct) >= ALIKE_PCT else "="
    more_gib = change.device_total_gib - change.before_gib
    more = f"{more_gib:+.1f}" if abs(more_gib) >= ALIKE_GIB else "="
    mark = _mark(change)
    text = f"{mark}{_cut(change.name, name - 1):<{name}}{step:>8}{with_minus(faster):>9}"
    text += f"{change.device_total_gib:>7.1f}{with_minus(more):>8}" + _cost(cost)
    return text, {GAIN: "good", NO_FIT: "muted"}.get(mark, "text")


def _mark(change: Change) -> str:
    if not change.fits:
        return NO_FIT
    return GAIN if change.step_pct < WON else "  "


def _cut(name: str, width: int) -> str:
    """By the letter: names differ in their last words."""
    return name if len(name) <= width else name[: width - 1].rstrip() + "…"
