"""Rules that a split keeps, each with its reason in words.

Read from the argument checks of Megatron-LM (``megatron/training/arguments.py``), torchtitan
(``ParallelDims``), DeepSpeed and accelerate; in our words. A rule holds elementwise: the same line
judges one split of whole numbers and thousands as arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gputop_analysis.parallelism.split import Split, expert_tensor_parallel
from gputop_analysis.vram.setup import ModelShape

UNEVEN_STAGES = ("megatron", "deepspeed", "torchtitan")
"""Recipes whose pipeline stages may have different numbers of layers: Megatron-Core gives the ends
fewer, or counts embedding and loss as one, as torchtitan does (``generate_llm_fqn_per_model_part``
of its ``distributed/pipeline_parallel.py``); DeepSpeed balances any list of layers
(``deepspeed/runtime/pipe/module.py``, ``_partition_layers``; BLOOM has 70 layers on 12 stages).
"""


@dataclass(frozen=True, slots=True)
class Training:
    """What is split, as far as rules ask for it; 0 where it is not known, which breaks no rule."""

    heads: int = 0
    kv_heads: int = 0
    ffn: int = 0
    layers: int = 0
    experts: int = 0
    seq: int = 0
    uneven_stages: bool = False
    """The framework is one of ``UNEVEN_STAGES``."""
    gpus: int = 0
    global_batch: int = 0

    @classmethod
    def of(cls, model: ModelShape, **facts: Any) -> Training:
        """Of a model; ``facts`` are the other fields."""
        return cls(
            model.heads,
            model.kv_heads or model.heads,
            model.ffn,
            model.layers,
            model.experts,
            **facts,
        )


Holds = Callable[[Training, Any], Any]
"""Whether a rule holds for a split (``Split``, or arrays of its names): a bool, or array."""


@dataclass(frozen=True, slots=True)
class SplitRule:
    """One rule. ``reason`` is a format string over the names of ``Training`` and of the split."""

    name: str
    reason: str
    holds: Holds


SPLIT_RULES: tuple[SplitRule, ...] = (
    SplitRule(
        "heads",
        "tensor parallelism {tp} must divide the {heads} attention heads",
        lambda t, x: t.heads % x.tp == 0,
    ),
    SplitRule(
        "kv_heads",
        "tensor parallelism {tp} and the {kv_heads} key-value heads must divide one another",
        lambda t, x: (t.kv_heads % x.tp == 0) | (x.tp % max(t.kv_heads, 1) == 0),
    ),
    SplitRule(
        "ffn",
        "tensor parallelism {tp} must divide the feed-forward size {ffn}",
        lambda t, x: t.ffn % x.tp == 0,
    ),
    SplitRule(
        "chunks",
        "{chunks} pipeline stages are more than the {layers} layers",
        lambda t, x: (x.pp * x.vpp <= t.layers + 2 * t.uneven_stages) | (t.layers == 0),
    ),
    SplitRule(
        "layers",
        "the {layers} layers do not divide into {chunks} pipeline stages",
        lambda t, x: (t.layers % (x.pp * x.vpp) == 0) | t.uneven_stages,
    ),
    SplitRule(
        "interleaving",
        "virtual pipeline stages need pipeline parallelism above 1",
        lambda t, x: (x.vpp == 1) | (x.pp > 1),
    ),
    SplitRule(
        "zero bubble",
        "a zero-bubble schedule needs pipeline stages (pp above 1)",
        lambda t, x: (x.zero_bubble == False) | (x.pp > 1),  # noqa: E712
    ),
    SplitRule(
        "context",
        "context parallelism {cp} cuts a sequence into {twice_cp} equal parts: seq "
        "{seq} does not divide so",
        lambda t, x: (x.cp == 1) | (t.seq % (2 * x.cp) == 0),
    ),
    SplitRule(
        "sequence",
        "sequence parallelism needs tensor parallelism above 1",
        lambda t, x: (x.sequence_parallel == False) | (x.tp > 1),  # noqa: E712
    ),
    SplitRule(
        "sequence length",
        "sequence parallelism needs a seq that tensor parallelism {tp} divides, not {seq}",
        lambda t, x: (x.sequence_parallel == False) | (t.seq // x.cp % x.tp == 0),  # noqa: E712
    ),
    SplitRule(
        "no experts",
        "the model has no experts to spread: expert parallelism must be 1",
        lambda t, x: (x.ep == 1) | (t.experts > 0),
    ),
    SplitRule(
        "experts",
        "expert parallelism {ep} must divide the {experts} experts",
        lambda t, x: t.experts % x.ep == 0,
    ),
    SplitRule(
        "expert ranks",
        "expert parallelism {ep} (x {expert_tp} tensor-parallel) must divide dp x cp x tp = "
        "{expert_ranks} of a copy",
        lambda t, x: (x.ep == 1) | (x.shards * x.tp % (x.ep * expert_tensor_parallel(x)) == 0),
    ),
    SplitRule(
        "experts with tensor parallelism",
        "expert with tensor parallelism needs sequence parallelism",
        lambda t, x: (x.ep == 1) | (x.tp == 1) | x.sequence_parallel,
    ),
    SplitRule(
        "sharding",
        "{kind} shards over data-parallel ranks: dp must be above 1 (or --zero 0)",
        lambda t, x: (x.stage == 0) | (x.dp * x.cp > 1) | (x.tp * x.pp == 1),
    ),
    SplitRule(
        "replicas",
        "copies (replicas) are of HSDP only",
        lambda t, x: (x.replicas == 1) | (x.stage == 3),
    ),
    SplitRule(
        "shards of a copy",
        "HSDP: the {replicas} replicas must divide dp {dp}, with more than one rank left for each",
        lambda t, x: (x.replicas == 1) | ((x.dp % x.replicas == 0) & (x.shards > 1)),
    ),
    SplitRule(
        "sharding in a pipeline",
        "{kind} does not go with pipeline parallelism: gradients of several micro-batches are held"
        " (DeepSpeed takes ZeRO-1 at most; FSDP2 goes)",
        lambda t, x: (x.pp == 1) | (x.stage < 2) | x.per_parameter,
    ),
)
"""What a split keeps whatever the batch and the cluster."""
STEP_RULES: tuple[SplitRule, ...] = (
    SplitRule(
        "world",
        "tp x pp x cp x dp = {world} is not the number of GPUs, {gpus}",
        lambda t, x: (x.world == t.gpus) | (t.gpus == 0),
    ),
    SplitRule(
        "batch",
        "a global batch of {global_batch} is no multiple of micro-batch {micro_batch} x dp {dp}",
        lambda t, x: t.global_batch % (x.micro_batch * x.dp) == 0,
    ),
    SplitRule(
        "interleaved batches",
        "interleaving needs micro-batches in multiples of pp {pp}",
        lambda t, x: (x.vpp == 1) | (t.global_batch // (x.micro_batch * x.dp) % x.pp == 0),
    ),
)
"""What a step keeps besides: the number of GPUs and the batch."""


class StepOfSplit:
    """A split and its micro-batch, for ``STEP_RULES``; all other names are the split's."""

    def __init__(self, split: Split, micro_batch: int) -> None:
        self.split = split
        self.micro_batch = micro_batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self.split, name)


def broken(
    training: Training, split: Any, rules: tuple[SplitRule, ...] = SPLIT_RULES
) -> list[tuple[SplitRule, str]]:
    """The rules that one split breaks, each with its reason."""
    return [
        (rule, reason(rule, training, split)) for rule in rules if not rule.holds(training, split)
    ]


def reason(rule: SplitRule, training: Training, split: Any) -> str:
    """Why one split breaks a rule, in its own numbers."""
    facts = {name: getattr(training, name) for name in Training.__dataclass_fields__}
    for name in ("dp", "tp", "pp", "vpp", "cp", "ep", "replicas", "micro_batch", "world"):
        facts[name] = getattr(split, name, 0)
    facts |= {
        "kind": words(split.sharding),
        "chunks": split.pp * split.vpp,
        "twice_cp": 2 * split.cp,
        "expert_tp": expert_tensor_parallel(split),
        "expert_ranks": int(split.shards * split.tp),
    }
    return rule.reason.format(**facts)


def words(sharding: str) -> str:
    """A kind of sharding as people write it."""
    if sharding.startswith("zero"):
        return sharding.replace("zero", "ZeRO-")
    return sharding.upper()
