"""Colours of the page, dark and light. The phases' hues are those of the live screen."""

from __future__ import annotations

from gputop_analysis.report.words import BUDGET_STYLE

DARK = {
    "data": "#e5a445",
    "h2d": "#e3d26f",
    "forward": "#6cb8e6",
    "backward": "#4a7fc9",
    "wait": "#b0486e",
    "optimizer": "#55b896",
    "comm": "#d17fae",
    "eval": "#62c3c9",
    "checkpoint": "#c8693f",
    "compile": "#a58ad6",
    "other": "#76808f",
    "text": "#d5d9e0",
    "strong": "#f3f5f8",
    "muted": "#8b94a3",
    "rule": "#2b323d",
    "page": "#101319",
    "card": "#171b22",
    "inset": "#1e242d",
    "accent": "#8fb8e8",
    "good": "#6cc39a",
    "critical": "#f0716f",
    "high": "#f0a35e",
    "medium": "#e0c96a",
    "info": "#9aa5b5",
}
LIGHT = {
    "data": "#e09a3a",
    "h2d": "#d2bb35",
    "forward": "#5fb0e0",
    "backward": "#2f6db5",
    "wait": "#c4527f",
    "optimizer": "#3aa583",
    "comm": "#c8649f",
    "eval": "#3fb0b8",
    "checkpoint": "#b8592a",
    "compile": "#8f70c9",
    "other": "#9aa2ad",
    "text": "#2b313a",
    "strong": "#12161c",
    "muted": "#69717e",
    "rule": "#dfe3e8",
    "page": "#f5f6f7",
    "card": "#ffffff",
    "inset": "#f1f3f5",
    "accent": "#1f5fa8",
    "good": "#17784f",
    "critical": "#bb2a2a",
    "high": "#a85a08",
    "medium": "#7d6700",
    "info": "#5f6b7a",
}
BUDGET = {**BUDGET_STYLE, "other": "muted"}
"""Colour of each line of the efficiency budget."""

GOODPUT = {
    "productive": "backward",
    "core_wait": "medium",
    "init": "other",
    "first_step": "compile",
    "restart": "checkpoint",
    "lost_work": "critical",
    "hang": "high",
    "shutdown": "muted",
}
"""Colour of each part of the session."""

STARTUP = {
    "import torch": "other",
    "CUDA": "h2d",
    "process group": "comm",
    "model": "optimizer",
    "weights": "checkpoint",
    "torch.load": "checkpoint",
    "first batch": "data",
    "compile": "compile",
    "first forward": "forward",
    "first backward": "backward",
    "first update": "optimizer",
}
"""Colour of each part of the time before the first step was done; the others are muted."""


def variables(colours: dict[str, str]) -> str:
    """CSS custom properties."""
    return "".join(f"--{name}:{value};" for name, value in colours.items())
