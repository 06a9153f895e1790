"""All configurations of a job on a number of GPUs that keep the rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from gputop_analysis.planner.hardware import Cluster
from gputop_analysis.planner.job import Job
from gputop_analysis.planner.layout import Layouts
from gputop_analysis.planner.rules import allowed, nearest_reasons

Columns = dict[str, np.ndarray]
"""One value a configuration, by the field of ``Layouts``."""
Values = dict[str, Sequence[int]]
"""What is tried of each field."""


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
    grid = _with_world(_grid(job, cluster, limits), cluster.gpus)
    return grid.take(allowed(job, grid, cluster.gpus))


def in_the_way(job: Job, cluster: Cluster, limits: Limits | None = None) -> str:
    """Where nothing keeps the rules: those that the nearest configuration breaks, in words."""
    limits = limits or Limits()
    grid = _with_world(_grid(job, cluster, limits), cluster.gpus)
    if not len(grid):
        if limits.replicas and 3 not in limits.zero:
            return "copies (HSDP) need ZeRO-3"
        return "tp x pp x cp has to divide the number of GPUs"
    return "; ".join(nearest_reasons(job, grid, cluster.gpus))


def _grid(job: Job, cluster: Cluster, limits: Limits) -> Layouts:
    """Every combination of what is tried, whether or not it keeps the rules."""
    degrees = _degrees(job, cluster, limits)
    rest = _besides_degrees(job, cluster, limits)
    without_stages = _crossed(_where(degrees, degrees["pp"] == 1), _unstaged(rest, limits))
    with_stages = _crossed(_where(degrees, degrees["pp"] > 1), _staged(rest, job, limits))
    values = {
        name: np.concatenate([column, with_stages[name]]) for name, column in without_stages.items()
    }
    values["sequence_parallel"] = values["tp"] > 1
    tried = (values["replicas"] == 1) | (values["zero"] == 3)
    tried &= _stages_tried(job, values, limits)
    return Layouts.of(**_where(values, tried))


def _degrees(job: Job, cluster: Cluster, limits: Limits) -> Columns:
    """The meshes of tp, pp, cp and ep that divide the GPUs."""
    gpus, model = cluster.gpus, job.model
    # tensor parallelism leaves a node only where it is asked to
    most_tp = gpus if limits.tp else min(gpus, cluster.gpus_per_node)
    most_pp = min(gpus, model.layers)
    cp: Sequence[int] = (1,)
    if job.seq >= limits.long_sequence:
        cp = powers(min(gpus, 64))
    ep: Sequence[int] = (1,)
    if model.experts:
        ep = _up_to(gpus, divisors(model.experts))
    degrees = _mesh(
        {
            "tp": _up_to(most_tp, limits.tp or divisors(model.heads)),
            "pp": _up_to(most_pp, limits.pp or divisors(gpus)),
            "cp": limits.cp or cp,
            "ep": limits.ep or ep,
        }
    )
    divides = gpus % (degrees["tp"] * degrees["pp"] * degrees["cp"]) == 0
    return _where(degrees, divides)


def _besides_degrees(job: Job, cluster: Cluster, limits: Limits) -> Values:
    """What is tried with each mesh, before it is known whether that has stages."""
    micro_batches = _up_to(limits.most_micro_batch, divisors(job.global_batch))
    return {
        "vpp": limits.vpp or range(1, limits.most_vpp + 1),
        "micro_batch": limits.micro_batch or micro_batches,
        "zero": limits.zero if cluster.gpus > 1 else limits.zero[:1],
        "recompute": limits.recompute,
        "replicas": limits.replicas or _copies(cluster),
        "zero_bubble": limits.zero_bubble,
    }


def _unstaged(rest: Values, limits: Limits) -> Values:
    """What is tried without pipeline stages: nothing to interleave, unless it is asked for."""
    return rest if limits.vpp else rest | {"vpp": (1,)}


def _staged(rest: Values, job: Job, limits: Limits) -> Values:
    """What is tried with pipeline stages: FSDP only with torchtitan and where it is asked for."""
    asked_for = limits.zero == (3,) and limits.pp
    if job.recipe == "torchtitan" or asked_for:
        return rest
    return rest | {"zero": [stage for stage in rest["zero"] if stage != 3]}


def _crossed(degrees: Columns, rest: Values) -> Columns:
    """Each of ``degrees`` with each combination of ``rest``."""
    combinations = _mesh(rest)
    many, few = len(degrees["tp"]), len(combinations["vpp"])
    values = {name: np.repeat(column, few) for name, column in degrees.items()}
    return values | {name: np.tile(column, many) for name, column in combinations.items()}


def _where(values: Columns, chosen: np.ndarray) -> Columns:
    return {name: column[chosen] for name, column in values.items()}


def _up_to(most: int, numbers: Sequence[int]) -> list[int]:
    return [number for number in numbers if number <= most]


def _stages_tried(job: Job, values: Columns, limits: Limits) -> np.ndarray:
    """Which numbers of stages and chunks are tried: those that divide the layers, and uneven ones
    in which every stage lacks at most one layer; all where ``vpp`` is asked for.
    """
    if limits.vpp:
        return np.ones(len(values["pp"]), bool)
    chunks = values["pp"] * values["vpp"]
    lacking = np.ceil(job.model.layers / chunks) * chunks - job.model.layers
    return (lacking == 0) | (lacking < values["pp"])


def _copies(cluster: Cluster) -> tuple[int, ...]:
    """Copies of HSDP that are tried: one for every 1, 2, 4 or 8 nodes, and one in all (FSDP)."""
    nodes = cluster.gpus // cluster.gpus_per_node
    copies = [nodes // size for size in (1, 2, 4, 8) if nodes % size == 0 and nodes > size]
    return (1, *copies)


def _with_world(layouts: Layouts, gpus: int) -> Layouts:
    """The same with the data-parallel degree that the GPUs leave."""
    columns = {field.name: getattr(layouts, field.name) for field in fields(Layouts)}
    columns["dp"] = gpus // (layouts.tp * layouts.pp * layouts.cp)
    return Layouts(**columns)


def _mesh(axes: Values) -> Columns:
    grids = np.meshgrid(*(np.asarray(values, np.int64) for values in axes.values()), indexing="ij")
    return {name: grid.ravel() for name, grid in zip(axes, grids, strict=True)}


def divisors(number: int) -> list[int]:
    """The counts that divide ``number``, rising."""
    return [n for n in range(1, number + 1) if number % n == 0]


def powers(most: int) -> list[int]:
    """The powers of 2 up to ``most``."""
    return [2**n for n in range(most.bit_length()) if 2**n <= most]
