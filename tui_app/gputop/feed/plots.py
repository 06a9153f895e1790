"""A chart as plain values: made from a record in a worker thread, drawn at any size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class PlotLine:
    """One curve. Values may share nearly one step: a spike between two points stays visible."""

    name: str
    steps: tuple[float, ...]
    values: tuple[float, ...]
    style: str = "allocated"
    """Colour role."""
    dashed: bool = False
    """Told apart without colour, of two in one chart."""


@dataclass(frozen=True, slots=True)
class MarkedStep:
    """One step that is pointed at."""

    step: float
    label: str | None
    """What stands at its head; None for a line without a head."""
    style: str = "critical"


@dataclass(frozen=True, slots=True)
class Chart:
    """Curves over one axis of steps (or seconds)."""

    title: str
    unit: str
    lines: tuple[PlotLine, ...]
    marks: tuple[MarkedStep, ...] = ()
    level: float | None = None
    """A limit, drawn as a dashed line."""
    from_zero: bool = False
    axis: Literal["step", "s", "event"] = "step"


@dataclass(frozen=True, slots=True)
class Columns:
    """Stacked columns of the ten phases, of which those in ``focus`` are in colour."""

    title: str
    first_step: int
    last_step: int
    phases_ms: tuple[tuple[float, ...], ...]
    """One column of ten phases each, milliseconds a step."""
    focus: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Bar:
    """One labelled bar of several parts."""

    label: str
    parts: tuple[tuple[float, str], ...]
    """``(value, colour role)``."""
    chosen: bool = False


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars on one scale, such as the ranks' own and waiting time."""

    title: str
    unit: str
    legend: tuple[tuple[str, str], ...]
    """``(name of the part, colour role)``."""
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class Listing:
    """Lines of text: a traceback, ranks' places. ``lines``: ``(text, whether it matters most)``."""

    title: str
    lines: tuple[tuple[str, bool], ...]


Plot = Chart | Columns | Bars | Listing


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why there is nothing to show."""

    text: str
