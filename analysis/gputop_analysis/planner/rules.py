"""Rules that a configuration keeps, each with its reason in words.

Read from the argument checks of Megatron-LM (``megatron/training/arguments.py``), torchtitan (``ParallelDims``) and
accelerate; in our words.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gputop_analysis.planner.job import Job
from gputop_analysis.planner.layout import Bools, Layouts

Check = Callable[[Job, Layouts, int], Bools]


@dataclass(frozen=True, slots=True)
class Rule:
    """``holds`` is elementwise over configurations; the last argument is the number of GPUs."""

    name: str
    reason: str
    holds: Check


RULES: tuple[Rule, ...] = (
    Rule("world", "tp x pp x cp x dp is the number of GPUs", lambda job, x, gpus: x.world == gpus),
    Rule("heads", "attention heads divide by tp", lambda job, x, _: job.model.heads % x.tp == 0),
    Rule(
        "kv_heads",
        "key-value heads divide by tp, or tp divides by them (they are replicated then)",
        lambda job, x, _: _divides_either_way(job.model.kv_heads or job.model.heads, x.tp),
    ),
    Rule("ffn", "the MLP's width divides by tp", lambda job, x, _: job.model.ffn % x.tp == 0),
    Rule("layers", "layers divide by pp x vpp", lambda job, x, _: job.model.layers % (x.pp * x.vpp) == 0),
    Rule("interleaving", "several chunks of a stage (vpp) need pp > 1", lambda job, x, _: (x.vpp == 1) | (x.pp > 1)),
    Rule("zero bubble", "a zero-bubble schedule needs pp > 1", lambda job, x, _: ~x.zero_bubble | (x.pp > 1)),
    Rule(
        "interleaved batches",
        "interleaving needs micro-batches in multiples of pp",
        lambda job, x, _: (x.vpp == 1) | (_micro(job, x) % x.pp == 0),
    ),
    Rule(
        "batch",
        "the global batch is micro-batch x accumulation x dp",
        lambda job, x, _: job.global_batch % (x.micro_batch * x.dp) == 0,
    ),
    Rule(
        "context",
        "the sequence divides by 2 x cp (each rank takes an early and a late piece)",
        lambda job, x, _: (x.cp == 1) | (job.seq % (2 * x.cp) == 0),
    ),
    Rule("sequence", "sequence parallelism needs tp > 1", lambda job, x, _: ~x.sequence_parallel | (x.tp > 1)),
    Rule(
        "sequence length",
        "with sequence parallelism the sequence divides by tp",
        lambda job, x, _: ~x.sequence_parallel | (job.seq % x.tp == 0),
    ),
    Rule(
        "experts",
        "experts divide by ep, and a dense model has none",
        lambda job, x, _: (max(job.model.experts, 1) % x.ep) == 0,
    ),
    Rule("replicas", "copies (HSDP) need ZeRO-3", lambda job, x, _: (x.replicas == 1) | (x.zero == 3)),
    Rule(
        "shards of a replica",
        "replicas divide dp, with more than one rank left for each",
        lambda job, x, _: (x.replicas == 1) | ((x.dp % x.replicas == 0) & (x.shards > 1)),
    ),
    Rule(
        "expert ranks",
        "ep divides the ranks dp x cp (of one replica) it is folded into",
        lambda job, x, _: x.shards % x.ep == 0,
    ),
    Rule(
        "experts with tensor parallelism",
        "tp together with ep needs sequence parallelism",
        lambda job, x, _: (x.ep == 1) | (x.tp == 1) | x.sequence_parallel,
    ),
    Rule(
        "parameter sharding in a pipeline",
        "ZeRO-2 and 3 do not go with pipeline stages (gradients of several micro-batches are held)",
        lambda job, x, _: (x.pp == 1) | (x.zero < 2),
    ),
    Rule(
        "sharding",
        "ZeRO shards over more than one data-parallel rank",
        lambda job, x, _: (x.zero == 0) | (x.dp * x.cp > 1),
    ),
)


def allowed(job: Job, layouts: Layouts, gpus: int) -> Bools:
    """Which configurations keep every rule."""
    return np.logical_and.reduce([np.broadcast_to(rule.holds(job, layouts, gpus), layouts.tp.shape) for rule in RULES])


def broken(job: Job, layouts: Layouts, gpus: int) -> tuple[Rule, ...]:
    """The rules that the first of ``layouts`` breaks."""
    one = layouts.take([0])
    return tuple(rule for rule in RULES if not np.all(rule.holds(job, one, gpus)))


def _divides_either_way(kv_heads: int, tp: np.ndarray) -> Bools:
    return (kv_heads % tp == 0) | (tp % kv_heads == 0)


def _micro(job: Job, layouts: Layouts) -> np.ndarray:
    return job.global_batch // np.maximum(layouts.micro_batch * layouts.dp, 1)
