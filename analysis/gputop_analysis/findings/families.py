"""The families of findings, in the order of the catalogue's page."""

from __future__ import annotations

from typing import NamedTuple

from gputop_analysis.findings.pictures import (
    CLOCK,
    LOSS,
    MEMORY,
    NORM,
    RANK_WAITS,
    STACKS,
    STEP_TIME,
    TRACEBACK,
    Picture,
    phases,
)


class Family(NamedTuple):
    """What findings of one kind have in common."""

    title: str
    """Heading on the page of findings."""
    pictures: tuple[Picture, ...] = (STEP_TIME,)
    """Shown where a finding names none of its own."""
    whole_run: bool = False
    """Shown over the whole run: a spike or a leak is no matter of the last steps."""


FAMILIES: dict[str, Family] = {
    "input": Family("Input pipeline", (phases("data"), STEP_TIME)),
    "host": Family("Host and Python"),
    "compute": Family("Compute efficiency"),
    "memory": Family("Memory", (MEMORY,), whole_run=True),
    "ranks": Family("Ranks and communication", (RANK_WAITS, phases("comm"))),
    "thermal": Family("Clocks, power, heat, errors", (CLOCK,)),
    "numerics": Family("Numerics and convergence", (LOSS, NORM), whole_run=True),
    "reproducibility": Family("Reproducibility", whole_run=True),
    "crash": Family("Hangs and crashes", (TRACEBACK, STACKS)),
}
"""By the name that ``@finding`` gives."""


def family_of(name: str) -> Family:
    """The family of that name, a plain one where nothing is known of it."""
    return FAMILIES.get(name) or Family(name.capitalize())
