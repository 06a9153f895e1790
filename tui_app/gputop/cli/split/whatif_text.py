"""The table of single changes for a terminal: what each does to the step and to the memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gputop_analysis.text import wrap

if TYPE_CHECKING:
    from gputop_analysis.planner.whatif import Change

_NAMED = 2
"""Parts of the step that are named with a change."""


def table(changes: tuple[Change, ...], width: int, of: str) -> list[str]:
    """One line a change, by kind; those that cannot be made at the end, with the rule."""
    can, cannot = (
        [change for change in changes if not change.rule],
        [change for change in changes if change.rule],
    )
    room = max((len(change.name) for change in can), default=0)
    lines = [
        f"what if (each alone, computed for {of})",
        f"{'':<15}{'':<{room}} {'step':>8} {'GiB':>7} {'':>7}",
    ]
    group = ""
    for change in can:
        label = change.kind if change.kind != group else ""
        group = change.kind
        gib = change.device_total_gib - change.before_gib
        text = f"{label:<15}{change.name:<{room}} {change.step_pct:>+7.1f}% {gib:>+7.1f}"
        lines.append(
            f"{text} {'' if change.fits else 'does not fit'}{_parts(change)}"[:width].rstrip()
        )
    for change in cannot:
        lines += wrap(f"not {change.name}: {change.rule}", width, subsequent_indent="  ")
    return lines


def _parts(change: Change) -> str:
    from gputop_analysis.planner.choices import NAMES

    order = sorted(change.parts_s, key=lambda part: -abs(change.parts_s[part]))[:_NAMED]
    if order:
        return "  " + ", ".join(
            f"{NAMES[part]} {1000 * change.parts_s[part]:+,.0f} ms" for part in order
        )
    return ""
