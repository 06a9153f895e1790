"""Options that were given and change nothing: a mistake, or a wish that was not understood."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from gputop_analysis.catalog.denoisers import is_denoiser
from gputop_analysis.catalog.other_kinds import takes_tokens
from gputop_analysis.run_tables import plain_name
from gputop_analysis.vram.options import OPTION, parse
from gputop_analysis.vram.setup import (
    GALORE,
    KEEP_MASTER_WEIGHTS,
    TRANSFORMERS_CODE,
    Setup,
)

_OF_TEXT = frozenset(
    ("lengths", "loss", "attention", "freeze", "roles", "kernels", "gated_kernel", "dropout")
    + ("modules_to_save",)
)
"""Options that a diffusion model's training has no use for."""
SHARDS = ("zero1", "zero2", "zero3", "fsdp1", "fsdp2", "hsdp")


class Precondition(NamedTuple):
    """When an option means something."""

    applies: Callable[[Setup], bool]
    words: str
    """What it needs, as it ends a sentence."""


def _trains(setup: Setup) -> bool:
    return setup.optimizer != "none"


_ADAPTERS = Precondition(lambda setup: setup.lora is not None, "--lora-rank, or --adapter")
_LORA = Precondition(
    lambda setup: setup.lora is not None and not setup.peft,
    "--lora-rank: an --adapter has its own configuration",
)
_BUCKETS = Precondition(
    lambda setup: setup.by_deepspeed and setup.parallel.sharding != "none",
    "--zero, whose buckets it is about",
)
_EXPERTS = Precondition(lambda setup: bool(setup.model.experts), "a model with experts")
_STAGES = Precondition(lambda setup: setup.parallel.pp > 1, "--pp of 2 or more")
NEEDS: dict[str, Precondition] = {
    "seq": Precondition(
        lambda setup: setup.model.family != "vit" or setup.seq == setup.model.max_position,
        "a model that reads text",
    ),
    "image_size": Precondition(
        lambda setup: setup.images > 0, "--images, and a model with a vision tower"
    ),
    "images": Precondition(
        lambda setup: bool(setup.model.vision_layers), "a model with a vision tower"
    ),
    "cached": Precondition(lambda setup: is_denoiser(setup.model.family), "a diffusion model"),
    "lora_targets": _LORA,
    "lora_dtype": _ADAPTERS,
    "lora_dropout": _LORA,
    "dora": _LORA,
    "galore_rank": Precondition(
        lambda setup: setup.optimizer in GALORE, "--optimizer galore or galore-8bit"
    ),
    "quant": _ADAPTERS,
    "modules_to_save": _ADAPTERS,
    "double_quant": Precondition(lambda setup: setup.quantized == "nf4", "--quant nf4, or --qlora"),
    "bitsandbytes": Precondition(lambda setup: bool(setup.quantized), "--quant nf4, or --qlora"),
    "transformer_engine": Precondition(
        lambda setup: setup.recipe == "megatron", "--recipe megatron"
    ),
    "gated_kernel": Precondition(
        lambda setup: setup.kernels and setup.model.gated_mlp, "--kernels, and a gated MLP"
    ),
    "autocast": Precondition(lambda setup: setup.dtype in ("bf16", "fp16"), "--dtype bf16 or fp16"),
    "grad_dtype": Precondition(
        lambda setup: setup.lora is None and _trains(setup),
        "full training: gradients of adapters are of their own type",
    ),
    "master_weights": Precondition(
        lambda setup: _trains(setup) and (setup.weights or setup.dtype) != "fp32",
        "weights of 16 bits that are trained",
    ),
    "optimizer_in_backward": Precondition(_trains, "an optimizer"),
    "freeze": Precondition(
        _trains,
        "an optimizer",
    ),
    "compile": Precondition(
        lambda setup: setup.recipe != "megatron", "another recipe: Megatron-LM has its own kernels"
    ),
    "transformers": Precondition(
        lambda setup: setup.recipe in TRANSFORMERS_CODE, "--recipe transformers or deepspeed"
    ),
    "replicas": Precondition(lambda setup: setup.parallel.sharding == "hsdp", "--sharding hsdp"),
    "reshard_after_forward": Precondition(
        lambda setup: setup.parallel.sharding in ("fsdp1", "fsdp2", "hsdp", "zero3"),
        "--sharding fsdp1, fsdp2, hsdp or zero3",
    ),
    "sharding": Precondition(
        lambda setup: setup.parallel.sharding != "ddp" or setup.parallel.dp > 1,
        "--dp of 2 ranks or more",
    ),
    "offload": Precondition(
        lambda setup: setup.parallel.sharding in SHARDS and _trains(setup),
        "--sharding with ZeRO or FSDP, and an optimizer",
    ),
    "reduce_bucket_size": _BUCKETS,
    "overlap_comm": _BUCKETS,
    "vpp": _STAGES,
    "pipeline_stage": _STAGES,
    "sequence_parallel": Precondition(lambda setup: setup.parallel.tp > 1, "--tp of 2 or more"),
    "ep": _EXPERTS,
    "etp": _EXPERTS,
}
"""Options that mean something only beside others; the rules of a setup refuse what contradicts."""


def applies(name: str, setup: Setup) -> bool:
    """Whether an option changes anything for this setup."""
    return name not in NEEDS or NEEDS[name].applies(setup)


def idle(values: Mapping[str, Any], setup: Setup) -> Iterator[str]:
    """A line for each option that was given with a value of its own and changes nothing.

    Args:
        values: what was given, by names of ``OPTIONS``.
        setup: what they describe.
    """
    if not setup.model.hidden:
        yield from _idle_where_traced(map(plain_name, values), setup)
        return  # a module of one's own may take images
    yield from _master_weights_anyway(values, setup)
    for given_name, value in values.items():
        name = plain_name(given_name)
        if applies(name, setup) or parse(name, value) == OPTION[name].default:
            continue
        yield f"--{name.replace('_', '-')} changes nothing here: it needs {NEEDS[name].words}"


def _master_weights_anyway(values: Mapping[str, Any], setup: Setup) -> Iterator[str]:
    """A line where they are to be left out, and the trainer has them whatever is said."""
    wanted = {plain_name(name): value for name, value in values.items()}.get("master_weights")
    if wanted is None or parse("master_weights", wanted):
        return
    low = (setup.weights or setup.dtype) != "fp32"
    if low and _trains(setup) and setup.recipe in KEEP_MASTER_WEIGHTS:
        yield (
            f"--no-master-weights changes nothing here: {setup.recipe} keeps an fp32 copy of "
            "weights of 16 bits"
        )


def _idle_where_traced(names: Iterable[str], setup: Setup) -> Iterator[str]:
    model = setup.model
    denoises = is_denoiser(model.family)
    for name in names:
        written = f"--{name.replace('_', '-')}"
        if name == "seq" and not takes_tokens(model.family):
            yield f"{written} changes nothing here: {model.name} takes no tokens"
        if name == "cached" and not denoises:
            yield f"{written} changes nothing here: it needs {NEEDS[name].words}"
        if name in _OF_TEXT and denoises:
            yield f"{written} changes nothing here: it needs a model of text"


def refuse(values: Mapping[str, Any], setup: Setup) -> None:
    """Nothing where all that was given matters.

    Raises:
        ValueError: the first option that changes nothing.
    """
    for line in idle(values, setup):
        raise ValueError(line)
