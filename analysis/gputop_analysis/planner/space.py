"""All configurations of a job on a number of GPUs that keep the rules."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from gputop_analysis.planner.hardware import Cluster
from gputop_analysis.planner.job import Job
from gputop_analysis.planner.layout import Layouts
from gputop_analysis.planner.rules import allowed, nearest_reasons


@dataclass(frozen=True, slots=True)
class Limits:
    """What the search may try; an empty tuple: whatever divides."""

    tp: tuple[int, ...] = ()
    pp: tuple[int, ...] = ()
    vpp: tuple[int, ...] = ()
    cp: tuple[int, ...] = ()
    ep: tuple[int, ...] = ()
    micro_batch: tuple[int, ...] = ()
    zero: tuple[int, ...] = (0, 1, 3)
    recompute: tuple[int, ...] = (0, 1, 2)
    replicas: tuple[int, ...] = ()
    """Copies of HSDP; empty: one a node, pair, four or eight of nodes, and one (FSDP)."""
    zero_bubble: tuple[bool, ...] = (False,)
    """Tried where asked for: few launchers have such a schedule."""
    most_vpp: int = 8
    most_micro_batch: int = 64
    long_sequence: int = 16384
    """Below this many tokens context parallelism is not tried unless ``cp`` says so."""


def configurations(job: Job, cluster: Cluster, limits: Limits | None = None) -> Layouts:
    """Every configuration within ``limits`` that keeps the rules; may be empty."""
    limits = limits or Limits()
    grid = _grid(job, cluster, limits)
    grid = _with_world(grid, cluster.gpus)
    return grid.take(allowed(job, grid, cluster.gpus))


def in_the_way(job: Job, cluster: Cluster, limits: Limits | None = None) -> str:
    """Where nothing keeps the rules: those that the nearest configuration breaks, in words."""
    limits = limits or Limits()
    grid = _with_world(_grid(job, cluster, limits), cluster.gpus)
    if not len(grid):
        copies = limits.replicas and 3 not in limits.zero
        if copies:
            return "copies (HSDP) need ZeRO-3"
        return "tp x pp x cp has to divide the number of GPUs"
    return "; ".join(nearest_reasons(job, grid, cluster.gpus))


def _grid(job: Job, cluster: Cluster, limits: Limits) -> Layouts:
    model, gpus = job.model, cluster.gpus
    tp = [
        n
        for n in limits.tp or divisors(model.heads)
        if n <= gpus and (limits.tp or n <= cluster.gpus_per_node)
    ]
    pp = [n for n in limits.pp or divisors(gpus) if n <= min(gpus, model.layers)]
    vpp = limits.vpp or tuple(range(1, limits.most_vpp + 1))
    cp = limits.cp or (tuple(powers(min(gpus, 64))) if job.seq >= limits.long_sequence else (1,))
    ep = limits.ep or (
        tuple(n for n in divisors(model.experts) if n <= gpus) if model.experts else (1,)
    )
    micro = limits.micro_batch or tuple(
        n for n in divisors(job.global_batch) if n <= limits.most_micro_batch
    )
    degrees = _mesh({"tp": tp, "pp": pp, "cp": cp, "ep": ep})
    usable = _possible(degrees, gpus)
    mesh = {
        "vpp": vpp,
        "micro_batch": micro,
        "zero": limits.zero,
        "recompute": limits.recompute,
        "replicas": limits.replicas or _copies(cluster),
        "zero_bubble": limits.zero_bubble,
    }
    sharded = job.recipe == "torchtitan" or (limits.zero == (3,) and bool(limits.pp))
    staged = mesh if sharded else _without_fsdp(mesh)
    grids = []
    for stages, kinds in ((degrees["pp"] == 1, _whole(mesh, limits)), (degrees["pp"] > 1, staged)):
        usable_values = {name: values[usable & stages] for name, values in degrees.items()}
        grids.append(_crossed(usable_values, _mesh(kinds)))
    values = {name: np.concatenate([grid[name] for grid in grids]) for name in grids[0]}
    values["sequence_parallel"] = values["tp"] > 1
    tried = (values["replicas"] == 1) | (values["zero"] == 3)
    tried &= _stages_tried(job, values, limits)
    return Layouts.of(**{name: column[tried] for name, column in values.items()})


def _whole(rest: dict[str, Any], limits: Limits) -> dict[str, Any]:
    """What is tried without pipeline stages: nothing to interleave, unless it is asked for."""
    return rest if limits.vpp else rest | {"vpp": (1,)}


def _without_fsdp(rest: dict[str, Any]) -> dict[str, Any]:
    """What is tried with pipeline stages: FSDP only with torchtitan and where it is asked for."""
    return rest | {"zero": tuple(stage for stage in rest["zero"] if stage != 3)}


def _crossed(degrees: dict[str, np.ndarray], rest: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Each of ``degrees`` with each of ``rest``."""
    many, few = len(degrees["tp"]), len(rest["vpp"])
    values = {name: np.repeat(column, few) for name, column in degrees.items()}
    return values | {name: np.tile(column, many) for name, column in rest.items()}


def _stages_tried(job: Job, values: dict[str, np.ndarray], limits: Limits) -> np.ndarray:
    """Which numbers of stages and chunks are tried: those that divide the layers, and uneven ones
    in which every stage lacks at most one layer; all where ``vpp`` is asked for.
    """
    if limits.vpp:
        return np.ones(len(values["pp"]), bool)
    chunks = values["pp"] * values["vpp"]
    lacking = np.ceil(job.model.layers / chunks) * chunks - job.model.layers
    return (lacking == 0) | (lacking < values["pp"])


def _copies(cluster: Cluster) -> tuple[int, ...]:
    nodes = cluster.gpus // cluster.gpus_per_node
    return (1, *(nodes // n for n in (1, 2, 4, 8) if nodes % n == 0 and nodes > n))


def _possible(degrees: dict[str, np.ndarray], gpus: int) -> np.ndarray:
    return gpus % (degrees["tp"] * degrees["pp"] * degrees["cp"]) == 0


def _with_world(layouts: Layouts, gpus: int) -> Layouts:
    dp = gpus // (layouts.tp * layouts.pp * layouts.cp)
    return Layouts(*(dp if f.name == "dp" else getattr(layouts, f.name) for f in fields(Layouts)))


def _mesh(axes: dict[str, list[int] | tuple[int, ...]]) -> dict[str, np.ndarray]:
    grids = np.meshgrid(*(np.asarray(values, np.int64) for values in axes.values()), indexing="ij")
    return {name: grid.ravel() for name, grid in zip(axes, grids, strict=True)}


def divisors(number: int) -> list[int]:
    """The counts that divide ``number``, rising."""
    return [n for n in range(1, number + 1) if number % n == 0]


def powers(most: int) -> list[int]:
    """The powers of 2 up to ``most``."""
    return [2**n for n in range(most.bit_length()) if 2**n <= most]
