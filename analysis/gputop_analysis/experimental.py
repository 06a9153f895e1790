"""What gputop answers though no measured run has told it whether that is right: the one list."""

from __future__ import annotations

from gputop_analysis.parallelism.split import Split

_SERVING = "serving is a bound by memory and arithmetic, no measured run has calibrated it"
WORKLOADS = {
    "rlhf": "generation is a bound by memory and arithmetic, no measured run has calibrated it",
    "inference-batch": _SERVING,
    "inference-streaming": _SERVING,
}
"""Presets of ``gputop plan --workload``."""
TRACED = {
    "ep": "expert parallelism is traced with even routing, no measured run has confirmed it",
    "vpp": "interleaved pipelines are traced for one rank, no measured run has confirmed them",
}
"""Degrees above 1 that a trace answers for one rank."""


def of_split(split: Split, layers: int = 0) -> list[str]:
    """A sentence for each part of a split that the planner was never held against."""
    chunks = split.pp * split.vpp
    cases = (
        (
            split.stage == 3 and split.pp > 1,
            "FSDP in a pipeline: no measured run has calibrated its step time",
        ),
        (
            split.expert_tp < split.tp and split.ep > 1,
            "experts folded over tp: no measured run has calibrated them",
        ),
        (
            layers % chunks > 0,
            f"{layers} layers on {chunks} stages: no measured run has calibrated uneven stages",
        ),
    )
    return [sentence for applies, sentence in cases if applies]


def of_trace(split: Split) -> tuple[str, ...]:
    """What of a split a trace answers and no measured run has confirmed."""
    return tuple(sentence for name, sentence in TRACED.items() if getattr(split, name) > 1)
