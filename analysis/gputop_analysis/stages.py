"""What is known of a pipeline: its ranks, its micro-batches, how many stages a rank has."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gputop_agent.contracts import Hello, Pipeline
from gputop_analysis.view import RunView, once_per_view

MOSTLY = 0.5
"""Of the calls that flight recorders hold."""
PIPELINE_AXES = ("pp", "pipe", "pipeline", "stage")
SHARED_AXES = ("tp", "tensor", "model", "mp", "cp", "context", "sp", "sequence")
"""Of a mesh, along which ranks work on the same batch."""


def micro_batches(view: RunView) -> int | None:
    """As torch's schedule says; None where another library cuts the batch."""
    for hello in view.hellos.values():
        if count := _pipeline(hello).get("micro_batches"):
            return int(count)
    return None


def chunks_of(view: RunView) -> int:
    """Stages on each rank: more than one where the schedule is interleaved."""
    here = (_pipeline(hello).get("here") or () for hello in view.hellos.values())
    return max(map(len, here), default=1) or 1


def pipeline_ranks(view: RunView) -> int | None:
    """Ranks of a pipeline: by torch's schedule, or the mesh's pipeline axis; or None."""
    for hello in view.hellos.values():
        if ranks := _pipeline(hello).get("ranks"):
            return int(ranks) if ranks > 1 else None
        for name, size in _axes(hello):
            if name in PIPELINE_AXES and size > 1:
                return size
    return None


def rate_over_ranks(view: RunView, rates: Sequence[float]) -> float:
    """Samples or tokens that all ranks get through in a second, by what each is fed: a batch that
    several train on counts once. 0 where it is not known how many do.
    """
    together = _ranks_of_a_batch(view)
    if together == 1:
        return sum(rates)
    fed = [rate for rate in rates if rate]
    if not fed or not together:
        return 0.0
    return sum(fed) / len(fed) * len(rates) / together


def _ranks_of_a_batch(view: RunView) -> int:
    """Ranks that train on one batch together, as those of tensor, pipeline and context parallelism;
    1 where each has its own, 0 where that is not known: stages of a pipeline made by hand.
    """
    if view.world_size == 1:
        return 1
    together = pipeline_ranks(view) or 1
    for hello in view.hellos.values():
        sizes = [size for name, size in _axes(hello) if name in (*PIPELINE_AXES, *SHARED_AXES)]
        together = max(together, math.prod(sizes))
    if together == 1 and passes_messages(view):
        return 0
    return together


def _axes(hello: Hello) -> list[tuple[str, int]]:
    """Names, in small letters, and sizes of its mesh's dimensions."""
    mesh = (hello.get("parallel") or {}).get("mesh") or {}
    pairs = zip(mesh.get("names") or (), mesh.get("shape") or (), strict=False)
    return [(str(name).lower(), int(size)) for name, size in pairs]


@once_per_view
def passes_messages(view: RunView) -> bool:
    """Whether the script's ranks mostly send to one another instead of calling collectives, as the
    stages of a pipeline that it makes by hand.
    """
    entries = [
        entry
        for event in view.record.events("flight_recorder")
        for entry in event.get("entries", ())
    ]
    messages = sum(bool(entry.get("p2p")) for entry in entries)
    return messages > MOSTLY * len(entries)


def _pipeline(hello: Hello) -> Pipeline:
    """Empty where there is none, or where its inside could not be read."""
    described = (hello.get("parallel") or {}).get("pipeline")
    return described if isinstance(described, dict) else {}
