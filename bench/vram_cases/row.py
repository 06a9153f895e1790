"""One row of published measurements as a setup and what was measured."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gputop_analysis.parallelism.split import Split
from gputop_analysis.vram.setup import Lora, ModelShape, Setup
from vram_cases import megatron, notes, text, versions
from vram_cases.frameworks import Framework, framework
from vram_cases.shape import IN_BITS, Unknown, shape_of
from vram_cases.table import MEASURED, gib

UNSAID_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj")
_FOAK = re.compile(r"\bfoak\b", re.IGNORECASE)
"""fms-acceleration's fused operations and kernels: norms, rotary embedding and losses, none for a
frozen MLP (its ``models/llama.py``).
"""
TRAINED_SHARE = 0.5
"""Share of the parameters below which a run that names no adapter cannot be full training."""


@dataclass(frozen=True, slots=True)
class Case:
    """A measurement; ``setup`` is None where ``reason`` says why it cannot be estimated."""

    id: str
    source: str
    run: str
    """Rows of the same configuration share it: they weigh as one."""
    setup: Setup | None = None
    metric: str = ""
    """``allocated``, ``reserved`` or ``device``."""
    measured_gib: float | None = None
    oom: bool | None = None
    """Whether the run failed for memory; None: the source tells nothing about fitting."""
    gpu: str = ""
    reason: str = ""


class Skip(ValueError):
    """A row that cannot be estimated; its text says why."""


def read(row: Mapping[str, str], source: str) -> Case:
    """The case of one row; never raises for what is in it."""
    cells = {key: (value or "").strip() for key, value in row.items() if key}
    said = notes.parsed(cells.get("notes", ""))
    written = cells.get(MEASURED, "")
    measured = gib(written, cells.get("mem_metric", ""))
    failed = text.failed(cells.get("oom", ""), written)
    metric = text.metric(cells.get("mem_metric", ""))
    name = cells.get("source") or source
    case = Case(
        id=cells.get("case_id", ""),
        source=source,
        run=str(said.get("test") or ""),
        metric=metric or "",
        measured_gib=measured,
        oom=False if failed is None and measured is not None else failed,
        gpu=cells.get("gpu_model", ""),
    )
    try:
        if measured is None and failed is None:
            raise Skip(
                f"no amount of memory: {written[:40]}" if written else "nothing was measured"
            )
        if measured is not None and not failed and metric is None:
            raise Skip("which memory was measured is not said")
        setup = setup_of(cells, said)
    except (Skip, Unknown, megatron.NotModelled) as why:
        return replace(case, reason=str(why))
    return replace(
        case, setup=setup, run=case.run or f"{name} {zlib.crc32(repr(setup).encode()):08x}"
    )


def setup_of(cells: Mapping[str, str], said: dict[str, Any]) -> Setup:
    """What a row describes.

    Raises:
        Skip: something that the memory hangs on is not said, or is of a kind that a setup has no
            words for.
        Unknown: the model is.
        megatron.NotModelled: the model's layers are.
    """
    habits = framework(cells.get("framework", ""))
    gpus = text.count(cells.get("gpus", "")) or 1
    parallel = parallel_of(cells, said)
    shape = model_of(cells, said, parallel)
    if habits.unties:
        shape = replace(shape, tied_embeddings=False, params=0)
    lora = _on_its_layers(lora_of(cells, said, habits), shape)
    _refuse_other_adapters(said, shape, lora)
    loss = _known(text.loss(cells.get("fused_loss", "")), "loss", cells.get("fused_loss", ""))
    dtype = text.compute_dtype(
        cells.get("quant", "")
        if "fp8" in cells.get("quant", "").lower()
        else cells.get("dtype", "")
    )
    if notes.length_varies(cells.get("notes", "")):
        raise Skip("sequences are not packed, their length is not said")
    if "unpacked?" in cells.get("notes", ""):
        raise Skip("whether sequences are packed is a guess")
    return Setup(
        model=shape,
        seq=shape.max_position if shape.family == "vit" else _needed(cells, "seq"),
        micro_batch=_needed(cells, "micro_batch"),
        accumulation=_accumulation(cells, said, parallel, habits),
        dtype=dtype or "bf16",
        weights=_prepared(cells, parallel, habits)
        or _weights(cells.get("dtype", ""), dtype or "bf16", parallel, habits, lora),
        quantized=_quantized(cells, lora),
        double_quant=habits.recipe != "litgpt" or "dq" in cells.get("quant", ""),
        optimizer=_optimizer(cells, lora, habits),
        attention=megatron.attention(said.get("args") or {})
        or text.attention(cells.get("flash", ""))
        or _attention(cells, habits),
        checkpointing=_checkpointing(cells, gpus, habits),
        loss=_loss(cells, loss, lora, habits),
        kernels=loss in ("kernel", "fused") or habits.kernels or _compiles_loss(cells, habits),
        gated_kernel=not _FOAK.search(cells.get("notes", "") + cells.get("fused_loss", "")),
        optimizer_in_backward="optimizer_in_b"
        in cells.get("optimizer", "") + cells.get("notes", ""),
        offload_activations=_offloads_activations(cells, habits),
        autocast=text.autocast(cells.get("dtype", "")),
        dropout=megatron.dropout(said.get("args")) if habits.recipe == "megatron" else 0.0,
        lora=lora,
        compile=_compiles(cells),
        bitsandbytes=habits.bitsandbytes if lora is not None else "",
        parallel=parallel,
        transformers=text.transformers_version(cells.get("framework_version", "")),
        recipe="deepspeed" if _deepspeed(cells) else habits.recipe,
        lengths=notes.lengths(cells.get("notes", "")),
        modules_to_save=notes.modules_to_save(cells.get("notes", "")) if lora else (),
        allocator=notes.allocator(cells.get("notes", "")) or habits.allocator,
    )


def _needed(cells: Mapping[str, str], column: str) -> int:
    if (found := text.count(cells.get(column, ""))) is None:
        raise Skip(f"{column} is not said")
    return found


def _certain(cells: Mapping[str, str], column: str) -> str:
    written = cells.get(column, "")
    if written.endswith("?") and not text.blank(written):
        raise Skip(f"{column} is a guess: {written}")
    return written


def _known(value: str | None, what: str, cell: str) -> str:
    if value is None:
        raise Skip(f"{what} of a kind that is not modelled: {cell}")
    return value


def parallel_of(cells: Mapping[str, str], said: dict[str, Any]) -> Split:
    """The degrees of parallelism, the data-parallel one from the number of GPUs where it is not
    given.
    """
    tp, pp, cp, ep = (text.count(cells.get(name, "")) or 1 for name in ("tp", "pp", "cp", "ep"))
    written = _certain(cells, "sharding")
    sharding = _known(text.sharding(written), "sharding", written)
    if sharding == "fsdp1" and not re.search(r"fsdp-?_? ?v?1", written.lower()):
        sharding = framework(cells.get("framework", "")).fsdp
    gpus, dp = text.count(cells.get("gpus", "")), text.count(cells.get("dp", ""))
    if dp is None and gpus is not None:
        dp = max(gpus // (tp * pp * cp), 1)
    batch, each = text.count(str(said.get("gbs", ""))), text.count(cells.get("micro_batch", ""))
    if dp and batch and each:
        dp = min(dp, max(batch // each, 1))  # a global batch of fewer micro-batches than ranks
    if dp is None and sharding not in ("none", "ddp"):
        raise Skip("over how many ranks the optimizer is sharded is not said")
    args = said.get("args") or {}
    if args and dp is None:
        dp = ep  # the fewest ranks: experts are split by TP as well, as Megatron-LM has it
    return Split(
        dp=dp or 1,
        tp=tp,
        pp=pp,
        vpp=_virtual(cells, pp),
        cp=cp,
        ep=ep,
        etp=text.count(str(args.get("expert-tensor-parallel-size", ""))) or 0,
        sequence_parallel=tp > 1 and (bool(args.get("sequence-parallel")) or not args),
        sharding=_applied(sharding, (dp or 1) * cp, by_engine=not args),
        replicas=megatron.instances(said),
        offload=text.offload(written),
        pipeline_stage=pp - 1 if "last rank" in cells.get("mem_metric", "") else 0,
    )


def _applied(sharding: str, ranks: int, *, by_engine: bool) -> str:
    """What a sharding comes to over so many ranks of data and context parallelism; DeepSpeed's
    engine has its optimizer and buckets on one, too, Megatron-LM's nothing.
    """
    if ranks == 1:
        return sharding if by_engine and sharding.startswith("zero") else "none"
    return "ddp" if sharding == "none" else sharding


def _virtual(cells: Mapping[str, str], pp: int) -> int:
    written = cells.get("vp", "")
    if written.startswith("layers/"):
        each = text.count(written.rpartition("=")[2]) or 1
        return max((text.count(cells.get("layers", "")) or 0) // (pp * each), 1)
    return text.count(written) or 1


def model_of(cells: Mapping[str, str], said: dict[str, Any], parallel: Split) -> ModelShape:
    """The model of a row; with Megatron-LM's arguments, where its notes hold them."""
    shape = shape_of(cells)
    if (
        isinstance(args := said.get("args"), dict)
        and "megatron" in cells.get("framework", "").lower()
    ):
        vocab = text.count(cells.get("vocab", ""))
        return megatron.shape_of(
            shape,
            args,
            str(said.get("test", "")),
            tp=parallel.tp,
            vocab=vocab,
            seq=_needed(cells, "seq"),
        )
    return shape


def lora_of(cells: Mapping[str, str], said: dict[str, Any], habits: Framework) -> Lora | None:
    """The adapter of a row: rank 8, peft's default, where only the word default stands; on the four
    projections of the attention, halfway between peft's default and all linear layers, where no
    layers are named.
    """
    written = cells.get("lora_rank", "")
    if text.count(written) == 0 or (
        text.blank(written) and not notes.names_lora(cells.get("notes", ""))
    ):
        return None
    dtype = text.adapter_dtype(cells.get("dtype", "")) or habits.adapter_dtype
    return Lora(
        rank=text.count(written) or 8,
        targets=notes.lora_targets(cells.get("notes", ""), said) or UNSAID_TARGETS,
        dropout=habits.lora_dropout,
        dtype=dtype or text.compute_dtype(cells.get("dtype", "")) or "bf16",
        dora=notes.dora(said),
    )


def _on_its_layers(lora: Lora | None, shape: ModelShape) -> Lora | None:
    """The adapter on layers that the model here has, where the row names those of an older release
    of it.
    """
    from gputop_analysis.vram.adapters import ROLES, adapters

    if lora is None or adapters(shape, lora):
        return lora
    known = tuple(name for name in lora.targets if name in ROLES)
    return replace(lora, targets=known) if known else lora


def _refuse_other_adapters(said: dict[str, Any], shape: ModelShape, lora: Lora | None) -> None:
    if other := notes.other_adapter(said):
        raise Skip(f"a way of fine-tuning that is not modelled: {other}")
    trained = notes.trainable(said)
    if (
        lora is None
        and trained is not None
        and shape.params
        and trained < TRAINED_SHARE * shape.params
    ):
        raise Skip("few parameters are trained, by an adapter that is not modelled")


def _quantized(cells: Mapping[str, str], lora: Lora | None) -> str:
    written = cells.get("quant", "")
    quantized = _known(text.quantized(written), "quantisation", written)
    if text.blank(written) and notes.names_lora(cells.get("notes", "")) == "qlora":
        return "nf4"
    if text.blank(written) and (bits := IN_BITS.search(cells.get("model", ""))):
        quantized = "nf4" if bits[1] == "4" else "int8"
    if quantized and lora is None:
        raise Skip("quantised weights without LoRA")
    return quantized


def _weights(
    written: str, dtype: str, parallel: Split, habits: Framework, lora: Lora | None
) -> str:
    """fp32 under FSDP with mixed precision where the framework raises what it trains to fp32."""
    habit = habits.stored if lora is None else ""
    stored = text.stored_dtype(written) or habit or ("bf16" if dtype == "fp8" else dtype)
    sharded = parallel.sharding in ("fsdp1", "fsdp2", "hsdp")
    raised = habits.upcasts_sharded and sharded and lora is None and text.autocast(written)
    return "fp32" if raised else stored


def _prepared(cells: Mapping[str, str], parallel: Split, habits: Framework) -> str:
    """fp32 for what is not quantised where the trainer makes it so; fms-acceleration's
    ``accelerated-peft`` brings adapters of its own, which the trainer leaves alone.
    """
    quantized = text.quantized(cells.get("quant", ""))
    own = "accelerated-peft" in cells.get("notes", "") or "gptq" in cells.get("quant", "").lower()
    whole = parallel.sharding in ("none", "ddp")
    return "fp32" if quantized and habits.prepares_quantized and whole and not own else ""


def _optimizer(cells: Mapping[str, str], lora: Lora | None, habits: Framework) -> str:
    written = cells.get("optimizer", "")
    found = text.optimizer(written)
    if found is None and lora is None and not text.blank(written):
        raise Skip(f"optimizer of a kind that is not modelled: {written}")
    if found in (None, "adamw") and versions.before_torch_2(cells.get("framework_version", "")):
        return "adamw-loop"
    return (
        "adamw-fused" if habits.fused_optimizer and found in (None, "adamw") else found or "adamw"
    )


def _attention(cells: Mapping[str, str], habits: Framework) -> str:
    """The framework's; what Transformers wrote out before it took PyTorch's fused one."""
    said = cells.get("framework_version", "")
    old = habits.recipe == "transformers" and versions.before_sdpa(
        said, text.transformers_version(said)
    )
    return "eager" if old and habits.attention == "sdpa" else habits.attention


def _checkpointing(cells: Mapping[str, str], gpus: int, habits: Framework) -> str:
    written = _certain(cells, "act_ckpt")
    unsaid = text.blank(written) and not text.off(written)
    found = habits.checkpointing if unsaid else text.checkpointing(written, gpus)
    return _known(found, "checkpointing", written)


def _offloads_activations(cells: Mapping[str, str], habits: Framework) -> bool:
    written = cells.get("act_ckpt", "")
    unsaid = text.blank(written) and not text.off(written)
    return text.offloads_activations(written) or (unsaid and habits.offloads_activations)


def _compiles(cells: Mapping[str, str]) -> bool:
    written = cells.get("compile", "")
    return not (text.blank(written) or text.off(written))


def _compiles_loss(cells: Mapping[str, str], habits: Framework) -> bool:
    return (
        habits.compiles_loss
        and _compiles(cells)
        and versions.compiles_loss(cells.get("framework_version", ""))
    )


def _loss(cells: Mapping[str, str], loss: str, lora: Lora | None, habits: Framework) -> str:
    if text.blank(cells.get("fused_loss", "")) and not text.off(cells.get("fused_loss", "")):
        older = versions.before_chunked_loss(cells.get("notes", ""))
        found = habits.lora_loss if lora else habits.loss
        return "plain" if older and habits.recipe == "torchtitan" else found
    return "plain" if loss == "kernel" else loss


def _accumulation(
    cells: Mapping[str, str], said: dict[str, Any], parallel: Split, habits: Framework
) -> int:
    """Of the row; else from the global batch; else enough to fill the pipeline. Two at least before
    PyTorch 2.0, which left gradients where they were, as a second micro-batch does.
    """
    found = text.count(cells.get("grad_accum", ""))
    batch = text.count(str(said.get("gbs", "")))
    if not found and batch and text.count(cells.get("gpus", "")):
        found = max(batch // (_needed(cells, "micro_batch") * parallel.dp), 1)
    if not found:
        found = 2 if habits.accumulates else 1 if parallel.pp == 1 else 2 * parallel.pp
    return max(found, 1 + versions.before_torch_2(cells.get("framework_version", "")))


def _deepspeed(cells: Mapping[str, str]) -> bool:
    written = cells.get("sharding", "").lower()
    return "deepspeed" in written or (written.startswith("zero") and "dist" not in written)
