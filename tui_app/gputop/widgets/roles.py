"""Colour roles that rows may name. Each is a component class of the main screen, so every colour is set in CSS.

They hang on the screen and not on the panels: Textual styles every component of every widget at the start, which for
nine widgets took longer than all the rest of the first frame.
"""

from __future__ import annotations

from gputop import palette

PREFIX = "role--"

#: role -> theme variable
ROLES: dict[str, str] = {
    **{phase.name: f"$phase-{phase.name}" for phase in palette.PHASES},
    "text": "$role-text",
    "muted": "$role-muted",
    "track": "$role-track",
    "rule": "$role-rule",
    "accent": "$role-accent",
    "cursor": "$role-cursor",
    "surface": "$role-surface",
    "good": "$role-good",
    "critical": "$role-critical",
    "high": "$role-high",
    "medium": "$role-medium",
    "info": "$role-info",
    "allocated": "$role-allocated",
    "reserved": "$role-reserved",
    "foreign": "$role-foreign",
    "meter": "$role-meter",
    **{f"heat{level}": f"$role-heat{level}" for level in range(5)},
}

CLASSES: set[str] = {PREFIX + role for role in ROLES}


def css(owner: str) -> str:
    """Rules that give every role its colour, for the widget type that owns the component classes."""
    return owner + " {\n" + "\n".join(f"  & > .{PREFIX}{r} {{ color: {v}; }}" for r, v in ROLES.items()) + "\n}\n"
