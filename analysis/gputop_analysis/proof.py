"""How a number was reached: what ``report --explain`` prints of a finding."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Input:
    """One number that a finding was computed from."""

    name: str
    """``data wait``."""
    value: float | str
    unit: str = ""
    source: str = ""
    """Where in the record it lies, and how much of it was read: ``steps.data_ns, rank 0, 312 steady
    steps``.
    """


@dataclass(frozen=True, slots=True)
class Proof:
    """How a finding was reached, for all to check: what ``report --explain`` prints."""

    statistic: str
    """What was compared: ``lower end of the 95 % interval of data wait / step time``."""
    value: float
    threshold: float
    """The finding is raised where ``value`` lies beyond it."""
    unit: str
    formula: str
    """How the recoverable time, or else the statistic, follows from the inputs."""
    inputs: tuple[Input, ...] = ()
