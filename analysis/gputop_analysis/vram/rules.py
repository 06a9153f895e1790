"""Combinations that cannot be trained, each with the rule that it breaks."""

from __future__ import annotations

from collections.abc import Iterator

from gputop_analysis.vram import conf
from gputop_analysis.vram.setup import Parallel, Setup

MOST = 1 << 24
"""Of any count: beyond all that is trained, and small enough that sizes are numbers of 64 bits."""
SHARDED = ("zero1", "zero2", "zero3", "fsdp1", "fsdp2", "hsdp")


def check(setup: Setup) -> None:
    """Nothing if a setup can be trained.

    Raises:
        ValueError: the first rule that it breaks, in words.
    """
    conf.parse(setup.allocator)
    for broken in (_counts, _adapters, _division, _sharding, _pipeline):
        for rule in broken(setup):
            raise ValueError(rule)


def _counts(setup: Setup) -> Iterator[str]:
    parallel = setup.parallel
    degrees = {name: getattr(parallel, name) for name in ("dp", "tp", "pp", "vpp", "cp", "ep", "replicas")}
    amounts = {"seq": setup.seq, "micro-batch": setup.micro_batch, "accumulation": setup.accumulation}
    for name, value in (amounts | degrees).items():
        if value < 1:
            yield f"{name} must be at least 1, not {value}"
        if value > MOST:
            yield f"{name} must be at most {MOST}, not {value}"
    longest = setup.model.max_position
    if longest and setup.seq > longest and setup.model.family in ("gpt2", "bert", "opt"):
        yield f"{setup.model.name} has learned positions for {longest} tokens, seq {setup.seq} is beyond them"


def _adapters(setup: Setup) -> Iterator[str]:
    if setup.lora is not None and setup.lora.rank < 1:
        yield f"the LoRA rank must be at least 1, not {setup.lora.rank}"
    hidden = setup.model.hidden
    if setup.lora is not None and hidden and setup.lora.rank > hidden:
        yield f"LoRA rank {setup.lora.rank} is above the hidden size {hidden}: adapters would outgrow their layers"
    if setup.lora is not None and hidden and not setup.model.vision_layers:
        yield from _targets(setup)
    if setup.quantized and setup.lora is None and setup.optimizer != "none":
        yield f"{setup.quantized} weights are frozen: they can only be trained with LoRA adapters (add a LoRA rank)"
    if setup.quantized and setup.parallel.sharding in ("zero1", "zero2", "zero3") and setup.parallel.offload == "all":
        yield f"{setup.quantized} weights stay on the GPU: bitsandbytes cannot offload them"
    if setup.images and not setup.model.vision_layers:
        yield f"{setup.model.name} has no vision tower, so it takes no images"
    if "vision" in setup.freeze and not setup.model.vision_layers:
        yield f"{setup.model.name} has no vision tower to freeze"


def _targets(setup: Setup) -> Iterator[str]:
    from gputop_analysis.catalog.params import linears
    from gputop_analysis.vram.adapters import adapters

    lora, shape = setup.lora, setup.model
    names = dict.fromkeys(one.name for moe in (False, True) for one in linears(shape, moe))
    if lora is not None and names and not adapters(shape, lora):
        asked = ", ".join(lora.targets) or "nothing"
        yield f"no layer of {shape.name} is called {asked}: LoRA targets are {', '.join(names)}, or all-linear"


def _division(setup: Setup) -> Iterator[str]:
    model, parallel = setup.model, setup.parallel
    tp, cp, ep = parallel.tp, parallel.cp, parallel.ep
    if model.heads and model.heads % tp:
        yield f"tensor parallelism {tp} must divide the {model.heads} attention heads"
    if model.kv_heads and model.kv_heads % tp and tp % model.kv_heads:
        yield f"tensor parallelism {tp} and the {model.kv_heads} key-value heads must divide one another"
    if model.ffn and model.ffn % tp:
        yield f"tensor parallelism {tp} must divide the feed-forward size {model.ffn}"
    if cp > 1 and setup.seq % (2 * cp):
        yield f"context parallelism {cp} cuts a sequence into {2 * cp} equal parts: seq {setup.seq} does not divide so"
    if parallel.sequence_parallel and tp == 1:
        yield "sequence parallelism needs tensor parallelism above 1"
    if parallel.sequence_parallel and setup.seq // cp % tp:
        yield f"sequence parallelism needs a seq that tensor parallelism {tp} divides, not {setup.seq}"
    if ep > 1 and not model.experts:
        yield f"{model.name} has no experts to spread: expert parallelism must be 1"
    if ep > 1 and model.experts % ep:
        yield f"expert parallelism {ep} must divide the {model.experts} experts"
    if ep > parallel.dp * cp * tp or (parallel.dp * cp * tp) % ep:
        yield f"expert parallelism {ep} must divide dp x cp x tp = {parallel.dp * cp * tp}"


def _sharding(setup: Setup) -> Iterator[str]:
    parallel = setup.parallel
    if parallel.sharding in SHARDED and parallel.dp * parallel.cp == 1:
        yield f"{_words(parallel.sharding)} shards over data-parallel ranks: dp must be above 1"
    if parallel.replicas > 1 and parallel.sharding != "hsdp":
        yield "replicas are of HSDP only"
    if parallel.sharding == "hsdp" and parallel.dp % parallel.replicas:
        yield f"HSDP: the {parallel.replicas} replicas must divide dp {parallel.dp}"
    if parallel.offload != "none" and parallel.sharding == "ddp":
        yield "offloading needs ZeRO or FSDP, plain data parallelism keeps all on the GPU"
    if parallel.offload == "all" and parallel.sharding in ("zero1", "zero2"):
        yield f"{_words(parallel.sharding)} keeps whole parameters: only ZeRO-3 and FSDP offload them"


def _pipeline(setup: Setup) -> Iterator[str]:
    model, parallel = setup.model, setup.parallel
    chunks = parallel.pp * parallel.vpp
    if parallel.vpp > 1 and parallel.pp == 1:
        yield "virtual pipeline stages need pipeline parallelism above 1"
    uneven = setup.recipe == "megatron"  # its options spread embedding and loss, and give the ends fewer layers
    if model.layers and chunks > model.layers + 2 * uneven:
        yield f"{chunks} pipeline stages are more than the {model.layers} layers"
    if model.layers and model.layers % chunks and not uneven:
        yield f"the {model.layers} layers do not divide into {chunks} pipeline stages"
    if not 0 <= parallel.pipeline_stage < parallel.pp:
        yield f"pipeline stage {parallel.pipeline_stage} of {parallel.pp}: stages are counted from 0"
    if parallel.pp > 1 and parallel.sharding in ("zero2", "zero3"):
        yield f"{_words(parallel.sharding)} does not go with pipeline parallelism (DeepSpeed takes ZeRO-1 at most)"


def _words(sharding: str) -> str:
    return sharding.replace("zero", "ZeRO-") if sharding.startswith("zero") else sharding.upper()


def needs_fp8(setup: Setup) -> bool:
    """Whether the matrix products run in fp8, which Ada, Hopper, Blackwell and CDNA3 have."""
    return setup.dtype == "fp8"


def data_parallel(parallel: Parallel) -> int:
    """Ranks over which a whole copy of the model's states can be sharded."""
    return parallel.dp * parallel.cp
