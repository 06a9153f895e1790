"""An estimate's options by name: one table for command line, API, CSV columns, form."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from gputop_analysis.catalog.denoisers import CACHED, is_denoiser
from gputop_analysis.catalog.other_kinds import TIMM
from gputop_analysis.catalog.positions import default_seq
from gputop_analysis.parallelism.split import OFFLOADS, RECOMPUTES, SHARDINGS, Split
from gputop_analysis.run_tables import plain_name
from gputop_analysis.vram import peft_config, spellings
from gputop_analysis.vram import setup as vocabulary
from gputop_analysis.vram.formula import releases
from gputop_analysis.vram.setup import Lora, ModelShape, Setup

ROLES = ("critic", "reference", "reward")
FREEZABLE = ("vision", "projector", "language", "embeddings")
SAVED_MODULES = ("embeddings", "head")
SAVED_AS: Mapping[str, str] = {
    **dict.fromkeys(("embed_tokens", "wte", "embed_in", "word_embeddings"), "embeddings"),
    **dict.fromkeys(("lm_head", "embed_out", "output"), "head"),
}
"""Names that families give these modules, as peft's ``modules_to_save`` takes them."""
QUANTIZED = ("", "int8", "nf4")
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off", "")
_MODULE_DTYPES = ("fp32", "bf16", "fp16")


class SetupOption(NamedTuple):
    """One option, as it is called everywhere; on the command line with dashes."""

    name: str
    group: str
    kind: str
    """``count`` (whole number), ``share`` (0..1), ``choice``, ``words`` (with commas between),
    ``flag``, ``text``, ``release`` (of a library) or ``adapter`` (of peft).
    """
    default: Any
    help: str
    choices: tuple[str, ...] = ()
    least: int = 1
    names: Mapping[str, str] = {}
    """What else a choice is called."""

    @property
    def label(self) -> str:
        """As people read it."""
        return self.name.replace("_", " ")


OPTIONS: tuple[SetupOption, ...] = (
    SetupOption("seq", "Training", "count", 2048, "tokens of a sequence"),
    SetupOption(
        "lengths",
        "Training",
        "choice",
        "",
        "fixed: packed or padded to seq; varied: batches as long as their longest text",
        vocabulary.LENGTHS,
    ),
    SetupOption("micro_batch", "Training", "count", 1, "sequences of one forward pass on one GPU"),
    SetupOption(
        "accumulation",
        "Training",
        "count",
        1,
        "micro-batches of one optimizer step; in a pipeline as many as stages",
    ),
    SetupOption(
        "dtype",
        "Training",
        "choice",
        "bf16",
        "type of the computation",
        vocabulary.DTYPES,
        names=spellings.DTYPES,
    ),
    SetupOption(
        "weights",
        "Training",
        "choice",
        "",
        "type of the stored weights; fp32 with bf16 is AMP",
        ("", *_MODULE_DTYPES),
        names=spellings.DTYPES,
    ),
    SetupOption(
        "optimizer",
        "Training",
        "choice",
        "adamw",
        "optimizer",
        vocabulary.OPTIMIZERS,
        names=spellings.OPTIMIZERS,
    ),
    SetupOption(
        "galore_rank", "Training", "count", 128, "rank of the gradients that GaLore projects"
    ),
    SetupOption(
        "images",
        "Training",
        "count",
        0,
        "images of one sequence, for a model that sees; frames of a video",
        least=0,
    ),
    SetupOption(
        "image_size", "Training", "count", 336, "edge of an image in pixels, the shorter", least=14
    ),
    SetupOption(
        "cached",
        "Training",
        "words",
        (),
        "of a diffusion model, what was encoded before the training and is not on the GPU; as "
        "the usual script does it",
        CACHED,
    ),
    SetupOption(
        "checkpointing",
        "Memory",
        "choice",
        "none",
        "activation checkpointing",
        RECOMPUTES,
        names=spellings.CHECKPOINTING,
    ),
    SetupOption(
        "loss",
        "Memory",
        "choice",
        "plain",
        "cross-entropy; fused makes no whole logits (Liger, TRL's chunked)",
        vocabulary.LOSSES,
        names=spellings.LOSSES,
    ),
    SetupOption(
        "attention",
        "Memory",
        "choice",
        "sdpa",
        "attention",
        vocabulary.ATTENTIONS,
        names=spellings.ATTENTIONS,
    ),
    SetupOption(
        "lora_rank", "Memory", "count", 0, "rank of the LoRA adapters; 0: full training", least=0
    ),
    SetupOption(
        "lora_targets",
        "Memory",
        "words",
        ("q_proj", "v_proj"),
        "adapted layers as in peft, or all-linear",
    ),
    SetupOption(
        "lora_dtype",
        "Memory",
        "choice",
        "fp32",
        "type of the adapters",
        _MODULE_DTYPES,
        names=spellings.DTYPES,
    ),
    SetupOption("lora_dropout", "Memory", "share", 0.0, "dropout of the adapters"),
    SetupOption("dora", "Memory", "flag", False, "adapters with a magnitude (peft's use_dora)"),
    SetupOption(
        "adapter",
        "Memory",
        "adapter",
        "",
        "an adapter of peft in LoRA's place, which is traced: its kind (ia3, oft, loha, "
        "prefix_tuning ...) or its adapter_config.json",
    ),
    SetupOption(
        "quant",
        "Memory",
        "choice",
        "",
        "quantised frozen weights, with LoRA (gptq and awq as nf4)",
        QUANTIZED,
        names=spellings.QUANTIZED,
    ),
    SetupOption(
        "double_quant",
        "Memory",
        "flag",
        True,
        "with --quant nf4: its constants are quantised again (bnb_4bit_use_double_quant)",
    ),
    SetupOption(
        "grad_dtype",
        "Memory",
        "choice",
        "",
        "type of the kept gradients; as the weights",
        ("", *_MODULE_DTYPES),
        names=spellings.DTYPES,
    ),
    SetupOption(
        "master_weights", "Memory", "flag", False, "an fp32 copy of the weights in the optimizer"
    ),
    SetupOption("freeze", "Memory", "words", (), "parts that are not trained", FREEZABLE),
    SetupOption("roles", "Memory", "words", (), "RLHF: further models on this GPU", ROLES),
    SetupOption(
        "server_share",
        "Memory",
        "share",
        0.0,
        "of the GPU's memory, held by an inference server beside it (vLLM)",
    ),
    SetupOption(
        "kernels",
        "Memory",
        "flag",
        False,
        "fused norms, rotary embedding and in-place cross-entropy (Liger)",
    ),
    SetupOption(
        "gated_kernel",
        "Memory",
        "flag",
        True,
        "with kernels: one for the gated MLP's product (Liger)",
    ),
    SetupOption(
        "optimizer_in_backward",
        "Memory",
        "flag",
        False,
        "update each parameter in the backward pass",
    ),
    SetupOption(
        "offload_activations", "Memory", "flag", False, "kept activations wait on the host"
    ),
    SetupOption("dropout", "Memory", "share", 0.0, "dropout of the model itself"),
    SetupOption("autocast", "Memory", "flag", False, "autocast over 16-bit weights"),
    SetupOption("clip_grad", "Memory", "flag", True, "clip the norm of the gradients"),
    SetupOption("compile", "Memory", "flag", False, "torch.compile"),
    SetupOption(
        "recipe", "Memory", "choice", "transformers", "whose habits the run has", vocabulary.RECIPES
    ),
    SetupOption(
        "transformers", "Memory", "release", "", "version of transformers whose habits the run has"
    ),
    SetupOption("bitsandbytes", "Memory", "release", "", "release of bitsandbytes, with --quant"),
    SetupOption(
        "transformer_engine",
        "Memory",
        "release",
        "",
        "release of Transformer Engine, with --recipe megatron",
    ),
    SetupOption(
        "modules_to_save",
        "Memory",
        "words",
        (),
        "trained in full beside adapters",
        SAVED_MODULES,
        names=SAVED_AS,
    ),
    SetupOption("allocator", "Memory", "text", "", "PYTORCH_CUDA_ALLOC_CONF of the run"),
    SetupOption(
        "sharding",
        "Parallel",
        "choice",
        "none",
        "how data-parallel ranks share states",
        SHARDINGS,
        names=spellings.SHARDINGS,
    ),
    SetupOption("dp", "Parallel", "count", 1, "data-parallel ranks"),
    SetupOption("replicas", "Parallel", "count", 1, "HSDP: groups of ranks with a whole copy"),
    SetupOption("tp", "Parallel", "count", 1, "tensor-parallel ranks"),
    SetupOption("pp", "Parallel", "count", 1, "pipeline stages"),
    SetupOption("vpp", "Parallel", "count", 1, "model chunks of a stage (interleaved schedule)"),
    SetupOption("cp", "Parallel", "count", 1, "context-parallel ranks"),
    SetupOption("ep", "Parallel", "count", 1, "expert-parallel ranks"),
    SetupOption(
        "etp",
        "Parallel",
        "count",
        0,
        "tensor parallelism inside an expert; 0: as tp, or 1 where experts fold over tp",
        least=0,
    ),
    SetupOption("sequence_parallel", "Parallel", "flag", False, "sequence parallelism with TP"),
    SetupOption(
        "reshard_after_forward",
        "Parallel",
        "flag",
        True,
        "FSDP and ZeRO-3 free gathered weights after the forward",
    ),
    SetupOption("pipeline_stage", "Parallel", "count", 0, "stage that is asked about", least=0),
    SetupOption("offload", "Parallel", "choice", "none", "what lives on the host", OFFLOADS),
    SetupOption(
        "reduce_bucket_size",
        "Parallel",
        "count",
        500_000_000,
        "DeepSpeed's, in values; 0: auto, the hidden size squared",
        least=0,
    ),
    SetupOption(
        "overlap_comm", "Parallel", "flag", False, "DeepSpeed's: a second bucket of gradients"
    ),
)
OPTION: dict[str, SetupOption] = {option.name: option for option in OPTIONS}
_PARALLEL = frozenset(Split.__dataclass_fields__)
_LORA = {
    "lora_rank": "rank",
    "lora_targets": "targets",
    "lora_dtype": "dtype",
    "lora_dropout": "dropout",
    "dora": "dora",
    "adapter": "peft",
}


def setup_of(model: ModelShape, values: Mapping[str, Any], base: Setup | None = None) -> Setup:
    """The setup that plain values describe.

    Args:
        model: what is trained.
        values: by the names of ``OPTIONS``, as text or as they are; what is missing stays as in
            ``base``.
        base: where to start; the defaults without.

    Raises:
        ValueError: no such option, or a value that it does not take.
    """
    given = {plain_name(name): parse(plain_name(name), value) for name, value in values.items()}
    chosen = _defaults(model) if base is None else values_of(base)
    chosen |= given
    if base is None and is_denoiser(model.family):
        chosen |= _as_diffusers_trains(chosen, given)
    if chosen["adapter"] and (lora := peft_config.as_lora(chosen["adapter"])):
        parsed = {name: parse(name, value) for name, value in lora.items()}
        chosen |= parsed | {"adapter": ""} | {name: given[name] for name in parsed if name in given}
    if chosen["lora_rank"] == 0 and not chosen["adapter"] and chosen["quant"]:
        raise ValueError(
            f"quant {chosen['quant']} trains adapters on frozen weights: give a lora_rank, for "
            "example 16"
        )
    _settle_open(chosen, given)
    return _made(model, chosen)


def _settle_open(chosen: dict[str, Any], given: Mapping[str, Any]) -> None:
    """Settle what is not given by what is: nobody would choose it otherwise."""
    if chosen["sharding"] == "none" and chosen["dp"] > 1:
        chosen["sharding"] = "ddp"
    if "accumulation" not in given:
        # with fewer micro-batches than stages, some of these would have nothing to do
        chosen["accumulation"] = max(chosen["accumulation"], chosen["pp"])
    if "attention" not in given and _writes_attention_out(chosen):
        chosen["attention"] = "eager"
    if chosen["tp"] > 1 and chosen["ep"] > 1 and "sequence_parallel" not in given:
        # every framework that splits experts beside tensors needs it
        chosen["sequence_parallel"] = True


def _as_diffusers_trains(chosen: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """What its example scripts do where nothing else is said: autocast, over fp32 weights where
    these are trained, and adapters on all of attention.
    """
    low = chosen["dtype"] in ("bf16", "fp16")
    adapted = bool(chosen["lora_rank"] or chosen["adapter"])
    usual = {
        "autocast": low,
        "weights": "fp32" if low and not adapted else chosen["weights"],
        "lora_targets": vocabulary.OF_ATTENTION,
    }
    return {name: value for name, value in usual.items() if name not in given}


def _writes_attention_out(chosen: Mapping[str, Any]) -> bool:
    """Whether the release of Transformers that is told had no SDPA yet."""
    in_library = chosen["recipe"] in vocabulary.TRANSFORMERS_CODE
    return in_library and releases.release(chosen["transformers"]) < releases.SDPA


def _defaults(model: ModelShape) -> dict[str, Any]:
    defaults = {option.name: option.default for option in OPTIONS}
    defaults["seq"] = default_seq(model, defaults["seq"])
    if is_denoiser(model.family) or model.family == TIMM:
        defaults |= {"images": model.frames, "image_size": model.vision_image}
    return defaults


def _made(model: ModelShape, values: Mapping[str, Any]) -> Setup:
    """The setup of a value for each option."""
    lora = None
    if values["lora_rank"] or values["adapter"]:
        lora = Lora(**{field: values[name] for name, field in _LORA.items()})
    split = Split(**{name: value for name, value in values.items() if name in _PARALLEL})
    settings = {
        name: value for name, value in values.items() if name not in _PARALLEL and name not in _LORA
    }
    return Setup(model, quantized=settings.pop("quant"), lora=lora, parallel=split, **settings)


def values_of(setup: Setup) -> dict[str, Any]:
    """The plain values of a setup: the inverse of ``setup_of``."""
    values: dict[str, Any] = {}
    for option in OPTIONS:
        if option.name in _LORA:
            if setup.lora:
                values[option.name] = getattr(setup.lora, _LORA[option.name])
            else:
                values[option.name] = option.default
        elif option.name in _PARALLEL:
            values[option.name] = getattr(setup.parallel, option.name)
        else:
            values[option.name] = getattr(
                setup, "quantized" if option.name == "quant" else option.name
            )
    return values


def changed(setup: Setup) -> dict[str, Any]:
    """The values that differ from the defaults."""
    return {
        name: value for name, value in values_of(setup).items() if value != OPTION[name].default
    }


def parse(name: str, value: Any) -> Any:
    """A value as its option keeps it.

    Raises:
        ValueError: no such option, or a value that it does not take; the message says which it
            takes.
    """
    option = OPTION.get(name)
    if option is None:
        from difflib import get_close_matches

        near = ", ".join(get_close_matches(name, OPTION, cutoff=0.4))
        raise ValueError(
            f"no option {name!r}{near and f' (nearest: {near})'}: there are {', '.join(OPTION)}"
        )
    text = value.strip() if isinstance(value, str) else value
    if option.kind == "count":
        return _count(option, text)
    if option.kind == "share":
        return _share(option, text)
    if option.kind == "flag":
        return _flag(option, text)
    if option.kind == "words":
        return _words(option, text)
    if option.kind == "release":
        return _release(option, str(text or ""))
    if option.kind == "text":
        return str(text or "")
    if option.kind == "adapter":
        return peft_config.text_of(str(text or ""))
    return _choice(option, str(text or ""))


def _count(option: SetupOption, value: Any) -> int:
    written = str(value).replace("_", "").replace(",", "").lower()
    try:
        if option.name == "seq" and written.endswith("k"):
            number = 1024 * int(written[:-1])
        else:
            number = int(written)
    except ValueError:
        number = option.least - 1
    if number < option.least:
        raise ValueError(
            f"{option.name} takes a whole number from {option.least} on, not {value!r}"
        )
    return number


def _share(option: SetupOption, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = -1.0
    if not 0 <= number < 1:
        raise ValueError(f"{option.name} takes a number from 0 to 1, not {value!r}")
    return number


def _flag(option: SetupOption, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    word = str(value if value is not None else "").lower()
    if word not in _TRUE + _FALSE:
        raise ValueError(f"{option.name} takes yes or no, not {value!r}")
    return word in _TRUE


def _release(option: SetupOption, value: str) -> str:
    written = value.removeprefix("v")
    if written and not re.match(r"\d+\.\d+", written):
        raise ValueError(f"{option.name} takes a release with its minor number, not {value!r}")
    return written


def _words(option: SetupOption, value: Any) -> tuple[str, ...]:
    items: Iterable[Any] = (
        value.replace(";", ",").split(",") if isinstance(value, str) else value or ()
    )
    written = [word for item in items if (word := str(item).strip())]
    words = tuple(dict.fromkeys(option.names.get(word, word) for word in written))
    for word in words:
        if option.choices and word not in option.choices:
            raise ValueError(f"{option.name} takes {', '.join(option.choices)}, not {word!r}")
    return words


def _choice(option: SetupOption, value: str) -> str:
    word = spellings.plain(value)
    word = "" if word == "none" and "" in option.choices else option.names.get(word, word)
    if option.choices and word not in option.choices:
        named = ", ".join(choice or "none" for choice in option.choices)
        other = "; a script's own is traced: gputop estimate train.py"
        raise ValueError(
            f"{option.name} takes {named}, not {value!r}"
            f"{other if option.name == 'optimizer' else ''}"
        )
    return word
