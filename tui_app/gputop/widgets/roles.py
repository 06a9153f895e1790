"""Colour roles that rows may name. Each is a component class of ``Panel``, so every colour is set in CSS."""

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


def css(widget: str) -> str:
    """Rules that give every role of ``widget`` its colour."""
    return widget + " {\n" + "\n".join(f"  & > .{PREFIX}{r} {{ color: {v}; }}" for r, v in ROLES.items()) + "\n}\n"
