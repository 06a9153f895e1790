"""Buffers that data-parallel training needs besides the states."""

from __future__ import annotations

from collections.abc import Iterable

from gputop_analysis.vram.formula.dims import Dims, Number
from gputop_analysis.vram.formula.elementwise import choose, least, most, true
from gputop_analysis.vram.formula.habits import Habits
from gputop_analysis.vram.formula.parts import Part
from gputop_analysis.vram.formula.states import gradient_bytes, has_gradient, weight_bytes

LAYER = ("layers", "norms", "experts", "adapters")
"""Parts that the layers share evenly."""
REUSED, PREFETCHED = 5e8, 5e7
"""Half of ``stage3_max_reuse_distance``, and ``stage3_prefetch_bucket_size``, in elements."""
BACKWARD = ("backward", "backward end")
FILLED = {"zero1": (*BACKWARD, "optimizer"), "zero2": BACKWARD}
"""When DeepSpeed's bucket is there: from the first gradient on, in stage 2 until the last, in stage
1 until whole gradients are reduced just before the update; the others hold it for good. (Before
its release 0.13 stage 1 had none.)
"""


def buckets(d: Dims, parts: Iterable[Part], habits: Habits, phase: str) -> Number:
    """Of DDP (a copy of all gradients: ``gradient_as_bucket_view`` is off by default), and of
    DeepSpeed, in the phases that its stage fills them in.
    """
    sharding = d.setup.parallel.sharding
    trained = [part for part in parts if part.trained]
    if d.recipe == "deepspeed" and sharding in ("ddp", "zero1", "zero2", "zero3"):
        if phase not in FILLED.get(sharding, (phase,)):
            return 0.0
        total = sum((part.count for part in trained), 0.0)
        return _deepspeed_buckets(d, total, phase) * min(habits.gradients, 4.0)
    if habits.passing_gradients and sharding in ("ddp", "zero1"):  # DDP around ZeRO-1 as well
        return sum((part.count * habits.passing_gradients for part in trained), 0.0) * true(
            d.shards > 1
        )
    if sharding == "ddp" and not habits.flat_gradients:
        return sum((part.count * gradient_bytes(d, part, habits) for part in trained), 0.0)
    return 0.0


def _deepspeed_buckets(d: Dims, total: Number, phase: str) -> Number:
    """Values in DeepSpeed's buffers where ``total`` are trained. Every stage of ZeRO takes one of
    the bucket's size whatever is trained, stages 1 and 2 a second one where communication overlaps
    (``setup_buckets`` of ``stage_1_and_2.py``, the bucket's flat buffer in ``stage3.py``).
    """
    sharding, size = d.setup.parallel.sharding, bucket_size(d)
    if sharding == "ddp":
        return least(total, size)
    if sharding == "zero3":
        return size + 0.0 * total
    buffers = (2 if d.setup.overlap_comm else 1) * size + 0.0 * total
    return buffers + _reduced(total, size, phase) * (sharding == "zero2")


def bucket_size(d: Dims) -> float:
    """Values of DeepSpeed's bucket; what Transformers makes of ``auto`` stands in
    ``trainer_config_process`` of its ``integrations/deepspeed.py``.
    """
    return float(d.setup.reduce_bucket_size or d.model.hidden**2)


def _reduced(total: Number, size: float, phase: str) -> Number:
    """Values of the flat copy of DeepSpeed's bucket that goes around (``allreduce_and_scatter``):
    of a full one already with the first layers, of what is left at the end.
    """
    if phase == "backward end":
        return least(total, size)
    return choose(total > size, size, 0.0)


def gathered(d: Dims, parts: Iterable[Part], habits: Habits) -> Number:
    """Whole weights that a fully sharded rank holds while it computes: two layers (the next one is
    prefetched), and the embedding and head, which the outermost unit keeps; no more than the other
    ranks have. DeepSpeed counts values instead of layers.
    """
    if d.setup.parallel.stage < 3:
        return 0.0
    parts = list(parts)
    sizes = {part.name: part.count * _gathered_bytes(d, part, habits) for part in parts}
    if d.recipe == "deepspeed":
        kept_bytes = most(sizes.get("head", 0.0), _kept_at_the_turn(parts, sizes))
        alone_and_whole = (d.shards == 1) & (d.setup.parallel.offload != "all")
        return kept_bytes * (1 - true(alone_and_whole))
    of_others = sum(sizes.values()) * (1 - 1 / d.shards)
    if not d.setup.parallel.reshard_after_forward:
        return of_others
    layers = at_work(d) * sum(sizes.get(name, 0) for name in LAYER)
    gathered_bytes = layers + sizes.get("embeddings", 0) + sizes.get("head", 0)
    return choose(stays_whole(d), of_others, least(gathered_bytes, of_others))


def stays_whole(d: Dims) -> Number:
    """Whether weights and gradients of FSDP2 stay unsharded from a step's first micro-batch to its
    last: those of a pipeline's stage (``set_reshard_after_backward(False)`` and
    ``set_requires_gradient_sync(False)`` in PyTorch's ``distributed/pipelining/stage.py``).
    """
    per_parameter = d.setup.parallel.sharding in ("fsdp2", "hsdp")
    return (d.pp > 1) & (per_parameter and d.recipe == "torchtitan")


def _kept_at_the_turn(parts: list[Part], sizes: dict[str, Number]) -> Number:
    """Bytes of the weights that DeepSpeed's stage 3 keeps from the last forward on, as their
    backward comes within ``stage3_max_reuse_distance`` (of both ways: half of it is the end of the
    model), and of those that it gathers ahead (``partitioned_param_coordinator.py``).
    """
    values = most(sum((part.count for part in parts), 0.0), 1.0)
    share = least(REUSED / values, 1) + least(PREFETCHED / values, 1)
    return share * sum(sizes.values())


def in_other_pools(d: Dims, parts: Iterable[Part], habits: Habits, gradients: Number) -> Number:
    """What FSDP2 allocates on streams of its own, each with a pool of its own: the reduced
    gradients, and the buffers that gathered weights arrive in and are copied from
    (``foreach_reduce`` and ``foreach_all_gather`` in PyTorch's
    ``fsdp/_fully_shard/_fsdp_collectives.py``); of two layers, or of the embedding and the head.
    """
    sizes = {part.name: part.count * _gathered_bytes(d, part, habits) for part in parts}
    layers = at_work(d) * sum(sizes.get(name, 0) for name in LAYER)
    arriving = most(layers, sizes.get("embeddings", 0) + sizes.get("head", 0))
    return gradients + arriving * true(d.shards > 1)


def layer_gradients(d: Dims, parts: Iterable[Part], habits: Habits) -> Number:
    """Whole gradients while a rank that keeps a share of them reduces them: one layer's reduced,
    one's computed; the computed one alone where whole gradients wait for a later micro-batch.
    """
    if d.setup.parallel.stage < 2:
        return 0.0
    sizes = {
        part.name: part.count * gradient_bytes(d, part, habits)
        for part in parts
        if has_gradient(part, habits)
    }
    layers = at_work(d) * (1 - true(d.accumulation > 1) * habits.waits_whole / 2)
    return layers * sum(sizes.get(name, 0) for name in LAYER) * (1 - 1 / d.shards)


def whole_gradients(d: Dims, parts: Iterable[Part], habits: Habits) -> Number:
    """Gradients of all parts, unsharded, in the type of the computation; FSDP2 adds them up in the
    type that it reduces them in, where that is told (``to_accumulated_grad_if_needed`` of PyTorch's
    ``distributed/fsdp/_fully_shard/_fsdp_param.py``).
    """
    reduces_wider = d.setup.parallel.per_parameter and d.setup.grad_dtype == "fp32"
    widest = 4.0 if reduces_wider else max(d.compute, 2.0)
    sizes = (
        part.count * min(gradient_bytes(d, part, habits), widest)
        for part in parts
        if has_gradient(part, habits)
    )
    return sum(sizes, 0.0)


def pipelined_gradients(d: Dims, parts: Iterable[Part], habits: Habits) -> Number:
    """Those that a pipeline's stage adds up unsharded, in the fp32 that they are reduced in."""
    values = sum((part.count for part in parts if has_gradient(part, habits)), 0.0)
    return 4.0 * values * true(stays_whole(d))


def at_work(d: Dims) -> Number:
    """Two layers, as a share of this rank's."""
    return least(2 / d.layers, 1)


def _gathered_bytes(d: Dims, part: Part, habits: Habits) -> float:
    stored = weight_bytes(d, part, habits)
    return min(stored, d.compute) if part.name != "adapters" else stored
