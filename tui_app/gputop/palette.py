"""What colours and glyphs mean, once for every panel, report and plot.

A phase has one hue everywhere. The hues alternate in lightness in the order in which phases are
stacked, so that neighbours stay apart for colour-blind readers too; a phase also has a letter, for
where there is no colour. Severity and health are always a glyph and a word besides their colour.
"""

from __future__ import annotations

from typing import NamedTuple


class PhaseStyle(NamedTuple):
    """How one phase of a step looks."""

    name: str
    letter: str
    dark: str
    """Colour on a dark background."""
    light: str
    """Colour on a light background."""
    ansi: str
    """Nearest of the 16 colours that every terminal has."""


class Mark(NamedTuple):
    """A glyph, a word and the style name that colours both."""

    glyph: str
    word: str
    style: str


PHASES: tuple[PhaseStyle, ...] = (
    PhaseStyle("data", "d", "#e5a445", "#e09a3a", "ansi_yellow"),
    PhaseStyle("h2d", "h", "#e3d26f", "#d2bb35", "ansi_bright_yellow"),
    PhaseStyle("forward", "f", "#6cb8e6", "#5fb0e0", "ansi_bright_cyan"),
    PhaseStyle("backward", "b", "#4a7fc9", "#2f6db5", "ansi_blue"),
    PhaseStyle("optimizer", "o", "#55b896", "#3aa583", "ansi_green"),
    PhaseStyle("comm", "c", "#d17fae", "#c8649f", "ansi_magenta"),
    PhaseStyle("eval", "e", "#62c3c9", "#3fb0b8", "ansi_cyan"),
    PhaseStyle("checkpoint", "k", "#c8693f", "#b8592a", "ansi_red"),
    PhaseStyle("compile", "m", "#a58ad6", "#8f70c9", "ansi_bright_magenta"),
    PhaseStyle("other", "x", "#76808f", "#9aa2ad", "ansi_bright_black"),
)
PHASE: dict[str, PhaseStyle] = {phase.name: phase for phase in PHASES}


class BudgetStyle(NamedTuple):
    """How one line of the efficiency budget looks: a role, and a letter without colour."""

    style: str
    letter: str


BUDGET: dict[str, BudgetStyle] = {
    "useful_compute": BudgetStyle("good", "u"),
    "compute_overhead": BudgetStyle("backward", "o"),
    "data_stall": BudgetStyle("data", "d"),
    "host": BudgetStyle("other", "h"),
    "core_wait": BudgetStyle("medium", "q"),
    "communication": BudgetStyle("comm", "c"),
    "straggler_wait": BudgetStyle("wait", "s"),
    "checkpoint": BudgetStyle("checkpoint", "k"),
    "eval": BudgetStyle("eval", "e"),
    "compile": BudgetStyle("compile", "m"),
    "other": BudgetStyle("reserved", "x"),
}
"""Lines of the budget that are a phase keep the phase's hue."""

MEMORY: dict[str, BudgetStyle] = {
    "weights": BudgetStyle("allocated", "w"),
    "gradients": BudgetStyle("backward", "g"),
    "optimizer": BudgetStyle("optimizer", "o"),
    "master_weights": BudgetStyle("master", "m"),
    "activations": BudgetStyle("activations", "a"),
    "logits_loss": BudgetStyle("logits", "l"),
    "communication": BudgetStyle("comm", "c"),
    "temporaries": BudgetStyle("compile", "t"),
    "measured_difference": BudgetStyle("accent", "d"),
    "cached": BudgetStyle("reserved", "r"),
    "context": BudgetStyle("foreign", "x"),
}
"""What GPU memory is held for; gradients, optimizer and communication keep the hue of their phase.
``cached`` is what the allocator reserved and nothing uses, ``context`` the CUDA context with NCCL.
"""

SEVERITY: dict[str, Mark] = {
    "critical": Mark("✖", "critical", "critical"),
    "high": Mark("▲", "high", "high"),
    "medium": Mark("◆", "medium", "medium"),
    "info": Mark("·", "info", "info"),
}

HEALTH: dict[str, Mark] = {
    "waiting": Mark("○", "waiting", "info"),
    "looking": Mark("○", "looking", "info"),
    "healthy": Mark("●", "healthy", "good"),
    "attention": Mark("▲", "attention", "high"),
    "critical": Mark("✖", "critical", "critical"),
    "ended": Mark("■", "ended", "info"),
    "stopped": Mark("■", "stopped", "info"),
    "failed": Mark("✖", "failed", "critical"),
}
