"""The table of single changes for a terminal: what each does to the step and to the memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gputop_analysis.text import signed_percent, wrap

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
        f"{'':<15}{'':<{room}} {'step':>8} {'GiB':>7}",
    ]
    group = ""
    for change in can:
        label = change.kind if change.kind != group else ""
        group = change.kind
        gib = change.device_total_gib - change.before_gib
        step = signed_percent(change.step_pct / 100)
        text = f"{label:<15}{change.name:<{room}} {step:>8} {gib:>+7.1f}"
        text += "" if change.fits else " does not fit"
        lines.append(text + _parts(change, width - len(text)))
    for change in cannot:
        lines += wrap(f"not {change.name}: {change.rule}", width, subsequent_indent="  ")
    return lines


def _parts(change: Change, room: int) -> str:
    """The parts of the step that a change moves most, as many whole ones as have room."""
    from gputop_analysis.planner.choices import NAMES

    order = sorted(change.parts_s, key=lambda part: -abs(change.parts_s[part]))[:_NAMED]
    parts = [f"{NAMES[part]} {1000 * change.parts_s[part]:+,.0f} ms" for part in order]
    texts = ("   " + ", ".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((text for text in texts if len(text) <= room), "")
