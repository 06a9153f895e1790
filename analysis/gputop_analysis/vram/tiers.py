"""The tier for a setup: a trace that was made, else its event profile, else the formula."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gputop_analysis.catalog.families import traits
from gputop_analysis.vram import conf, peft_config
from gputop_analysis.vram.answer import TIERS, Peak
from gputop_analysis.vram.setup import Setup

if TYPE_CHECKING:
    from gputop_analysis.vram.eventlog import EventLog

Solver = Callable[[int | None], Peak]
"""The peak of one setup where segments may take so many bytes; None: as many as they want."""


class NotCoveredError(ValueError):
    """The tier that was asked for does not know this setup."""


def solver_of(setup: Setup, tier: str | None = None, log: EventLog | None = None) -> Solver:
    """What answers a setup.

    Args:
        setup: the model and how it is trained.
        tier: ``trace``, ``profile`` or ``formula``; None: a trace if ``log`` is given, else the
            first that covers it.
        log: the events of a trace of this setup, with all layers.

    Raises:
        ValueError: no such tier.
        NotCoveredError: the tier does not cover the setup.
    """
    if tier not in (None, *TIERS):
        raise ValueError(f"no tier '{tier}': choose from {', '.join(TIERS)}")
    if log is not None and tier in (None, "trace"):
        from gputop_analysis.vram.replay import Replay, summary

        replay = Replay(log, conf.parse(setup.allocator))
        return lambda room: summary(log, replay.played(room), "trace")
    if tier == "trace":
        raise NotCoveredError(
            "a trace needs a Python with torch; the profile and formula tiers answer without"
        )
    refuse_traced(setup)
    profile = None if tier == "formula" else _profile(setup, None)
    if profile is not None:
        return lambda room: profile if room is None else _profile(setup, room) or profile
    if two_stacks(setup):
        raise NotCoveredError(
            f"{setup.model.name} has an encoder and a decoder, and no event profile covers it "
            "trained so: a trace does, --tier trace with torch"
        )
    if tier == "profile":
        raise NotCoveredError(
            f"no event profile covers {setup.model.name} trained so; the formula tier does"
        )
    from gputop_analysis.vram import formula

    return lambda room: formula.peak(setup, room)


def solve(setup: Setup, tier: str | None = None) -> Peak:
    """The peak by the profile tier where it covers the setup, else by the formula.

    Raises:
        NotCoveredError: the tier asked for does not cover it.
    """
    return solver_of(setup, tier)(None)


def two_stacks(setup: Setup) -> bool:
    """Whether the model has encoder and decoder, whose layers differ: formulas count one."""
    return traits(setup.model.family).encoder_decoder


def refuse_traced(setup: Setup) -> None:
    """Nothing where profiles or formulas may know the setup.

    Raises:
        NotCoveredError: only a trace does.
    """
    if setup.peft:
        raise NotCoveredError(
            f"an adapter of the kind {peft_config.kind(setup.peft)} is traced: gputop "
            "estimate --model NAME --adapter ... does it where torch, transformers and peft are"
        )


def has_profile(setup: Setup) -> bool:
    """Whether an event profile covers the setup."""
    from gputop_analysis.vram import profiles

    return profiles.covers(setup)


def _profile(setup: Setup, room: int | None) -> Peak | None:
    from gputop_analysis.vram import profiles

    return profiles.peak(setup, room)
