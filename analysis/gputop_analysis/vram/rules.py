"""Combinations that cannot be trained, each with the rule that it breaks."""

from __future__ import annotations

from collections.abc import Iterator

from gputop_analysis.catalog.positions import longest
from gputop_analysis.parallelism.rules import UNEVEN_STAGES, Training, broken, words
from gputop_analysis.vram import conf
from gputop_analysis.vram.setup import GALORE, Lora, ModelShape, Setup

MOST = 1 << 24
"""Of any count: beyond all that is trained, and small enough that sizes are numbers of 64 bits."""


def check(setup: Setup) -> None:
    """Nothing if a setup can be trained.

    Raises:
        ValueError: the first rule that it breaks, in words.
    """
    conf.parse(setup.allocator)
    for rules in (_counts, _adapters, _projected, _quantized, _vision, _split, _offload, _stage):
        for rule in rules(setup):
            raise ValueError(rule)


def _counts(setup: Setup) -> Iterator[str]:
    parallel = setup.parallel
    degrees = {
        name: getattr(parallel, name) for name in ("dp", "tp", "pp", "vpp", "cp", "ep", "replicas")
    }
    amounts = {
        "seq": setup.seq,
        "micro-batch": setup.micro_batch,
        "accumulation": setup.accumulation,
    }
    if setup.dtype in ("int8", "nf4"):
        yield f"nothing is trained in {setup.dtype}: quantised frozen weights are --quant"
    for name, value in (amounts | degrees).items():
        if value < 1:
            yield f"{name} must be at least 1, not {value}"
        if value > MOST:
            yield f"{name} must be at most {MOST}, not {value}"
    beyond = longest(setup.model)
    if beyond and setup.seq > beyond:
        yield (
            f"{setup.model.name} has positions for {beyond} tokens, seq {setup.seq} is beyond them"
        )


def _adapters(setup: Setup) -> Iterator[str]:
    lora, hidden = setup.lora, setup.model.hidden
    if lora is None:
        return
    if lora.peft:
        yield from _of_peft(setup, lora)
        return
    if lora.rank < 1:
        yield f"the LoRA rank must be at least 1, not {lora.rank}"
    if not hidden:
        return
    if lora.rank > hidden:
        yield (
            f"LoRA rank {lora.rank} is above the hidden size {hidden}: adapters would "
            "outgrow their layers"
        )
    if not setup.model.vision_layers:
        yield from _targets(setup.model, lora)


def _of_peft(setup: Setup, lora: Lora) -> Iterator[str]:
    from gputop_analysis.vram.peft_config import OF_VALUES, kind

    if lora.rank:
        yield "--adapter stands in the place of --lora-rank: leave one out"
    if kind(lora.peft) in OF_VALUES:
        yield (
            f"{kind(lora.peft)} is made of the values of weights, which a trace on fake tensors "
            "does not have: run a few steps of it with gputop dryrun"
        )
    if setup.quantized:
        yield f"quantised weights are estimated under LoRA, not under {kind(lora.peft)}"
    if setup.parallel.tp * setup.parallel.pp * setup.parallel.cp * setup.parallel.ep > 1:
        yield "an adapter of peft is estimated on whole layers: leave tp, pp, cp and ep out"
    if setup.lengths == "varied":
        yield "an adapter of peft is traced with batches of --seq tokens: leave --lengths out"


def _targets(shape: ModelShape, lora: Lora) -> Iterator[str]:
    from gputop_analysis.catalog.params import linears
    from gputop_analysis.vram.adapters import adapters

    names = dict.fromkeys(linear.name for moe in (False, True) for linear in linears(shape, moe))
    if names and not adapters(shape, lora):
        asked_text = ", ".join(lora.targets) or "nothing"
        yield (
            f"no layer of {shape.name} is called {asked_text}: LoRA targets are "
            f"{', '.join(names)}, or all-linear"
        )


def _projected(setup: Setup) -> Iterator[str]:
    if setup.optimizer not in GALORE:
        return
    if setup.lora is not None:
        yield "GaLore projects the gradients of whole weights: leave the adapters out"
    if setup.parallel.world > 1 and setup.parallel.sharding not in ("none", "ddp"):
        yield (
            f"GaLore needs whole matrices of gradients, which {setup.parallel.sharding} shards: "
            "train it under plain DDP"
        )
    if setup.parallel.tp > 1:
        yield "GaLore needs whole matrices of gradients, which tensor parallelism splits"


def _quantized(setup: Setup) -> Iterator[str]:
    if not setup.quantized:
        return
    if setup.lora is None and setup.optimizer != "none":
        yield (
            f"{setup.quantized} weights are frozen: they can only be trained with LoRA adapters "
            "(add a LoRA rank)"
        )
    parallel = setup.parallel
    if parallel.offload == "all" and parallel.sharding in ("zero1", "zero2", "zero3"):
        yield f"{setup.quantized} weights stay on the GPU: bitsandbytes cannot offload them"


def _vision(setup: Setup) -> Iterator[str]:
    if setup.model.vision_layers:
        return
    name = setup.model.name
    if setup.images and not setup.model.frames:
        yield f"{name} has no vision tower, so it takes no images"
    if "vision" in setup.freeze:
        yield f"{name} has no vision tower to freeze"
    if "projector" in setup.freeze:
        yield f"{name} has no projector to freeze"


def _split(setup: Setup) -> Iterator[str]:
    uneven = setup.recipe in UNEVEN_STAGES
    training = Training.of(setup.model, seq=setup.seq, uneven_stages=uneven)
    for rule, why in broken(training, setup.parallel):
        if rule.name == "sharding" and setup.by_deepspeed:
            continue  # its engine runs on one GPU, too, most of all to offload
        yield why


def _offload(setup: Setup) -> Iterator[str]:
    parallel = setup.parallel
    if parallel.offload != "none" and parallel.sharding == "ddp":
        yield "offloading needs ZeRO or FSDP, plain data parallelism keeps all on the GPU"
    if parallel.offload == "all" and parallel.sharding in ("zero1", "zero2"):
        yield (
            f"{words(parallel.sharding)} keeps whole parameters: only ZeRO-3 and FSDP offload them"
        )


def _stage(setup: Setup) -> Iterator[str]:
    parallel = setup.parallel
    if not 0 <= parallel.pipeline_stage < parallel.pp:
        yield (
            f"pipeline stage {parallel.pipeline_stage} of {parallel.pp}: stages are counted from 0"
        )


def needs_fp8(setup: Setup) -> bool:
    """Whether the matrix products run in fp8, which Ada, Hopper, Blackwell and CDNA3 have."""
    return setup.dtype == "fp8"
