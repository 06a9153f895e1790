"""A finding's pictures as data: a check names them, ``gputop.feed.evidence`` draws them."""

from __future__ import annotations

from typing import NamedTuple


class Phases(NamedTuple):
    """Each step with these phases in colour."""

    names: tuple[str, ...]


class StepColumn(NamedTuple):
    """One column of the step records, as a mean over the steps of a row."""

    title: str
    unit: str
    column: str
    per_unit: float
    """Of the column's own unit in one of ``unit``: 1e6 for ns in a ms."""


class Reported(NamedTuple):
    """A number of the training's own, with its jumps marked: loss, grad_norm, lr or loss_scale."""

    series: str


class DeviceColumns(NamedTuple):
    """Samples of a GPU over time: ``(column, name, unit)`` of each line, all of one unit."""

    columns: tuple[tuple[str, str, str], ...]


class Named(NamedTuple):
    """A picture with a drawing of its own."""

    name: str


Picture = Phases | StepColumn | Reported | DeviceColumns | Named


def phases(*names: str) -> Phases:
    """Each step with these phases in colour."""
    return Phases(names)


def device_columns(*columns: tuple[str, str, str]) -> DeviceColumns:
    """Samples of a GPU over time, as ``(column, name, unit)``."""
    return DeviceColumns(columns)


STEP_TIME = StepColumn("step time", "ms", "wall_ns", 1e6)
GC_TIME = StepColumn("garbage collection", "ms a step", "gc_ns", 1e6)
CPU_SHARE = Named("cpu_share")
MEMORY = Named("memory")
RANK_WAITS = Named("rank_waits")
SLOW_AGAINST_OTHERS = Named("slow_against_others")
STACKS = Named("stacks")
TRACEBACK = Named("traceback")
LAST_OUTPUT = Named("last_output")
LOSS, NORM, RATE, SCALE = (Reported(series) for series in ("loss", "grad_norm", "lr", "loss_scale"))
CLOCK = device_columns(("sm_clock_mhz", "SM clock", "MHz"), ("sm_clock_max_mhz", "highest", "MHz"))
UTILISATION = device_columns(("util_pct", "busy", "%"), ("tensor_active_pct", "tensor cores", "%"))
POWER = device_columns(("power_w", "power", "W"), ("power_limit_w", "limit", "W"))
