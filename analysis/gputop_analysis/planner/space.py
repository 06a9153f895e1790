"""All configurations of a job on a number of GPUs that keep the rules."""

from __future__ import annotations

from dataclasses import dataclass, fields

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
    """Copies of HSDP; empty: as many as there are nodes, pairs, fours or eights of nodes, and one
    (FSDP).
    """
    zero_bubble: tuple[bool, ...] = (False,)
    """Tried where asked for: few launchers have such a schedule."""
    most_vpp: int = 8
    most_micro_batch: int = 64
    long_sequence: int = 16384
    """Below this many tokens context parallelism is not tried unless ``cp`` says so."""


def configurations(job: Job, cluster: Cluster, limits: Limits | None = None) -> Layouts:
    """Every configuration within ``limits`` that keeps the rules; may be empty."""
    limits = limits or Limits()
    found = _grid(job, cluster, limits)
    found = _with_world(found, cluster.gpus)
    return found.take(allowed(job, found, cluster.gpus))


def in_the_way(job: Job, cluster: Cluster, limits: Limits | None = None) -> str:
    """Where nothing keeps the rules: those that the nearest configuration breaks, in words."""
    limits = limits or Limits()
    found = _with_world(_grid(job, cluster, limits), cluster.gpus)
    if not len(found):
        copies = limits.replicas and 3 not in limits.zero
        return (
            "copies (HSDP) need ZeRO-3"
            if copies
            else "tp x pp x cp has to divide the number of GPUs"
        )
    return "; ".join(nearest_reasons(job, found, cluster.gpus))


def _grid(job: Job, cluster: Cluster, limits: Limits) -> Layouts:
    model, gpus = job.model, cluster.gpus
    tp = [
        n
        for n in limits.tp or _divisors(model.heads)
        if n <= gpus and (limits.tp or n <= cluster.gpus_per_node)
    ]
    pp = [n for n in limits.pp or _divisors(model.layers) if n <= gpus]
    vpp = limits.vpp or tuple(n for n in _divisors(model.layers) if n <= limits.most_vpp)
    cp = limits.cp or (tuple(_powers(min(gpus, 64))) if job.seq >= limits.long_sequence else (1,))
    ep = limits.ep or (
        tuple(n for n in _divisors(model.experts) if n <= gpus) if model.experts else (1,)
    )
    micro = limits.micro_batch or tuple(
        n for n in _divisors(job.global_batch) if n <= limits.most_micro_batch
    )
    degrees = _mesh({"tp": tp, "pp": pp, "cp": cp, "ep": ep})
    degrees = {name: values[_possible(degrees, gpus)] for name, values in degrees.items()}
    rest = _mesh(
        {
            "vpp": vpp,
            "micro_batch": micro,
            "zero": limits.zero,
            "recompute": limits.recompute,
            "replicas": limits.replicas or _copies(cluster),
            "zero_bubble": limits.zero_bubble,
        }
    )
    kept = (rest["replicas"] == 1) | (rest["zero"] == 3)
    rest = {name: values[kept] for name, values in rest.items()}
    many, few = len(degrees["tp"]), len(rest["vpp"])
    values = {name: np.repeat(column, few) for name, column in degrees.items()}
    values |= {name: np.tile(column, many) for name, column in rest.items()}
    values["sequence_parallel"] = values["tp"] > 1
    tried = _tried(job, values, cluster.gpus, limits)
    return Layouts.of(**{name: column[tried] for name, column in values.items()})


def _tried(job: Job, values: dict[str, np.ndarray], gpus: int, limits: Limits) -> np.ndarray:
    """What is tried unless it is asked for: stages of equal length, no FSDP in a pipeline, experts
    beside tensors and not folded over them. The rules allow the others, but no measured run has
    told the cost model of them.
    """
    tried = np.ones(len(values["tp"]), bool)
    if not limits.vpp:
        alone = (values["vpp"] == 1) & bool(limits.pp)
        tried &= alone | (job.model.layers % (values["pp"] * values["vpp"]) == 0)
    if not (limits.zero == (3,) and limits.pp):
        tried &= (values["pp"] == 1) | (values["zero"] != 3)
    if not limits.ep:
        ranks = gpus // (values["tp"] * values["pp"]) // values["replicas"]
        tried &= ranks % values["ep"] == 0
    return tried


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


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def _powers(most: int) -> list[int]:
    return [2**n for n in range(most.bit_length()) if 2**n <= most]
