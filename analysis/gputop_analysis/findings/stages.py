"""What is known of a pipeline: its ranks, its micro-batches, how many stages a rank has."""

from __future__ import annotations

from gputop_analysis.view import RunView

PIPELINE_AXES = ("pp", "pipe", "pipeline", "stage")


def micro_batches(view: RunView) -> int | None:
    """As torch's schedule says; None where another library cuts the batch."""
    told = ((hello.get("parallel") or {}).get("pipeline") or {} for hello in view.hellos.values())
    return next((int(one["micro_batches"]) for one in told if one.get("micro_batches")), None)


def chunks_of(view: RunView) -> int:
    """Stages on each rank: more than one where the schedule is interleaved."""
    told = ((hello.get("parallel") or {}).get("pipeline") or {} for hello in view.hellos.values())
    return max((len(one.get("here") or ()) for one in told), default=1) or 1


def pipeline_ranks(view: RunView) -> int | None:
    """Ranks of a pipeline: of torch's schedule, or the size of the device mesh's pipeline axis; None without one."""
    for hello in view.hellos.values():
        parallel = hello.get("parallel") or {}
        if ranks := (parallel.get("pipeline") or {}).get("ranks"):
            return int(ranks) if ranks > 1 else None
        mesh = parallel.get("mesh") or {}
        for name, size in zip(mesh.get("names") or (), mesh.get("shape") or (), strict=False):
            if str(name).lower() in PIPELINE_AXES and size > 1:
                return int(size)
    return None
