"""The setup of a run by its ranks' words, to start an estimate from what is trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gputop_analysis import catalog
from gputop_analysis.parallelism.split import Split
from gputop_analysis.view import RunView
from gputop_analysis.vram.setup import Lora, ModelShape, Setup

Hello = Mapping[str, Any]

_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "float8_e4m3fn": "fp8"}
_CONFIG = {
    "model_type": "model_type",
    "hidden_size": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "vocab_size": "vocab_size",
    "ffn_size": "intermediate_size",
    "max_sequence": "max_position_embeddings",
    "experts": "num_local_experts",
    "experts_per_token": "num_experts_per_tok",
    "tied_embeddings": "tie_word_embeddings",
}
"""Key of the hello's ``model.config`` and that of its Hugging Face configuration."""
_NEEDED = ("hidden_size", "layers", "heads", "vocab_size")
_OPTIMIZERS = {
    "adamw": "adamw",
    "adam": "adamw",
    "adamw8bit": "adamw-8bit",
    "adam8bit": "adamw-8bit",
    "pagedadamw": "adamw-paged",
    "pagedadamw32bit": "adamw-paged",
    "pagedadamw8bit": "adamw-paged-8bit",
    "fusedadam": "adamw-fused",
    "adafactor": "adafactor",
    "lion": "lion",
    "lion8bit": "lion-8bit",
    "muon": "muon",
    "came": "came",
    "galoreadamw": "galore",
    "galoreadamw8bit": "galore-8bit",
}
"""Class of the optimizer in lower case."""
_TOKENS = ("input_ids", "tokens", "token_ids", "decoder_input_ids")
_ZERO = {0: "ddp", 1: "zero1", 2: "zero2", 3: "zero3"}


def setup_of(
    view: RunView, rank: int | None = None, instead: ModelShape | None = None
) -> Setup | None:
    """How a rank of the run trains, the first one by default; ``instead`` takes the place of a
    model that is not told.

    Returns:
        None where the model has no configuration with an architecture in it, or the batches no
        sequence length.
    """
    hello = view.hello(rank) or view.record.hello(rank or 0) or {}
    series = view.per_rank.get(view.ranks[0] if rank is None and view.ranks else (rank or 0))
    accumulation = 1
    if series is not None and len(series.rows):
        batches, updates = series.rows["micro_batches"].sum(), series.rows["optimizer_steps"].sum()
        accumulation = max(1, round(float(batches) / max(float(updates), 1.0)))
    return setup_of_hello(hello, accumulation, view.world_size, instead)


def setup_of_hello(
    hello: Hello, accumulation: int = 1, world: int = 1, instead: ModelShape | None = None
) -> Setup | None:
    """The same from what a rank said about itself."""
    shape = shape_of_hello(hello) or instead
    sizes = _batch_sizes(hello)
    if shape is None or sizes is None:
        return None
    micro_batch, seq, images, image_size = sizes
    stored, computed = _dtypes_of(hello)
    model = _entry(hello, "model")
    if hello.get("checkpointing") or model.get("gradient_checkpointing"):
        checkpointing = "full"
    else:
        checkpointing = "none"
    setup = Setup(
        shape,
        seq=seq,
        micro_batch=micro_batch,
        accumulation=accumulation,
        dtype=computed,
        weights=stored if stored != computed else "",
        quantized=_quantized(model),
        optimizer=_optimizer(_entry(hello, "optimizer")),
        attention=_attention(_entry(model, "config")),
        checkpointing=checkpointing,
        lora=_lora(model),
        images=images,
        image_size=image_size,
        clip_grad="clip" in hello,
        compile=bool(_entry(hello, "compile").get("used")),
        recipe="transformers" if _entry(model, "config").get("model_type") else "plain",
        allocator=str(_entry(hello, "env").get("PYTORCH_CUDA_ALLOC_CONF") or ""),
    )
    return _parallel(setup, hello, world)


def shape_of_hello(hello: Hello) -> ModelShape | None:
    """The architecture, under the catalog's name if it has one of these sizes; else None."""
    model = _entry(hello, "model")
    config = _entry(model, "config")
    if not all(config.get(name) for name in _NEEDED):
        return None
    shape = catalog.shape_from_config(
        {_CONFIG[name]: config[name] for name in _CONFIG if name in config}
    )
    known_shape = next((listed for listed in catalog.models() if _is_same(listed, shape)), None)
    if known_shape is not None:
        return known_shape
    class_name = str(model.get("class") or "")
    name = str(
        config.get("name")
        or ("" if class_name.startswith("Peft") else class_name)
        or config.get("model_type")
        or "model"
    )
    return replace(
        shape,
        name=name.rstrip("/").rpartition("/")[2] or name,
        source="the run's own configuration",
    )


def _is_same(model_shape: ModelShape, shape: ModelShape) -> bool:
    fields = ("hidden", "layers", "heads", "kv_heads", "ffn", "vocab", "experts", "tied_embeddings")
    return model_shape.family == shape.family and all(
        getattr(model_shape, name) == getattr(shape, name) for name in fields
    )


def _batch_sizes(hello: Hello) -> tuple[int, int, int, int] | None:
    """Micro-batch, sequence length, images of a sequence, their edge; None: no sequence."""
    shapes: Mapping[str, list[int]] = _entry(_entry(hello, "batch"), "shapes")
    tokens = next(
        (s for key, s in shapes.items() if key.rpartition(".")[2] in _TOKENS and len(s) == 2), None
    )
    tokens = tokens or next((s for s in shapes.values() if len(s) == 2), None)
    if tokens is None:
        return None
    sizes = [
        example for example in _entry(hello, "shapes").get("examples") or () if len(example) == 2
    ]
    micro_batch, seq = max(
        [tuple(tokens), *(tuple(example) for example in sizes)], key=lambda size: size[0] * size[1]
    )
    pixels = next((s for key, s in shapes.items() if "pixel_values" in key and len(s) >= 4), None)
    if pixels is None:
        return micro_batch, seq, 0, Setup.__dataclass_fields__["image_size"].default
    return micro_batch, seq, max(1, pixels[0] // max(micro_batch, 1)), int(pixels[-1])


def _dtypes_of(hello: Hello) -> tuple[str, str]:
    """Of the stored weights, and of the computation."""
    model, amp = _entry(hello, "model"), _entry(hello, "amp")
    sizes = {name: n for name, n in _entry(model, "by_dtype").items() if name in _DTYPES}
    stored = "fp32"
    if sizes:
        stored = _DTYPES[max(sizes, key=lambda name: sizes[name])]
    mixed = _entry(_entry(_entry(hello, "parallel"), "fsdp"), "mixed_precision").get("param_dtype")
    named = mixed or (amp.get("dtype") or "float16" if amp.get("autocast") else None)
    return stored, _DTYPES.get(str(named), stored)


def _quantized(model: Mapping[str, Any]) -> str:
    kinds = _entry(model, "modules")
    if "Linear4bit" in kinds:
        return "nf4"
    if "Linear8bitLt" in kinds:
        return "int8"
    return ""


def _lora(model: Mapping[str, Any]) -> Lora | None:
    lora = _entry(model, "lora")
    if not lora:
        return None
    dtype = _DTYPES.get(str(lora.get("dtype")), "fp32")
    return Lora(
        int(lora["rank"]),
        tuple(lora.get("targets") or ()),
        dtype,
        float(lora.get("dropout") or 0.0),
    )


def _optimizer(optimizer: Mapping[str, Any]) -> str:
    optimizer_name = str(optimizer.get("class") or "").lower()
    if optimizer_name == "sgd":
        return "sgd-momentum" if optimizer.get("momentum") else "sgd"
    name = _OPTIMIZERS.get(optimizer_name, "adamw")
    if name != "adamw":
        return name
    if optimizer.get("fused"):
        return "adamw-fused"
    if optimizer.get("foreach") is False:
        return "adamw-loop"
    return "adamw"


def _attention(config: Mapping[str, Any]) -> str:
    named = str(config.get("attention") or "sdpa")
    if named.startswith("flash"):
        return "flash"
    if named == "eager":
        return "eager"
    return "sdpa"


def _parallel(setup: Setup, hello: Hello, world: int) -> Setup:
    """With the degrees of parallelism that the ranks told."""
    parallel = _entry(hello, "parallel")
    mesh = _entry(parallel, "mesh")
    degrees: dict[str, int] = dict(
        zip(mesh.get("names") or (), mesh.get("shape") or (), strict=False)
    )
    tp, cp, pp = (max(1, int(degrees.get(name, 1))) for name in ("tp", "cp", "pp"))
    layout = Split(dp=max(1, world // (tp * cp * pp)), tp=tp, cp=cp, pp=pp)
    if "deepspeed" in parallel:
        zero = _entry(parallel, "deepspeed")
        if zero.get("offload_param"):
            offload = "all"
        elif zero.get("offload_optimizer"):
            offload = "optimizer"
        else:
            offload = "none"
        layout = replace(
            layout, sharding=_ZERO.get(int(zero.get("zero_stage", 0)), "ddp"), offload=offload
        )
        return replace(
            setup,
            parallel=layout,
            recipe="deepspeed",
            master_weights=setup.dtype != "fp32",
            reduce_bucket_size=int(zero.get("reduce_bucket_size") or setup.reduce_bucket_size),
            overlap_comm=bool(zero.get("overlap_comm")) and layout.sharding in ("zero1", "zero2"),
        )
    if "fsdp" in parallel:
        return replace(setup, parallel=_fsdp(layout, _entry(parallel, "fsdp"), degrees))
    return replace(setup, parallel=replace(layout, sharding="ddp" if layout.dp > 1 else "none"))


def _fsdp(layout: Split, fsdp: Mapping[str, Any], degrees: Mapping[str, int]) -> Split:
    version = 2 if fsdp.get("version") == 2 else 1
    replicas = max(1, int(degrees.get("dp_replicate", degrees.get("replicate", 1))))
    if replicas > 1 or "HYBRID" in str(fsdp.get("sharding")):
        sharding = "hsdp"
    else:
        sharding = f"fsdp{version}"
    return replace(
        layout,
        sharding=sharding,
        replicas=replicas,
        offload="all" if fsdp.get("cpu_offload") else "none",
        reshard_after_forward=bool(
            fsdp.get("reshard_after_forward", fsdp.get("sharding") != "SHARD_GRAD_OP")
        ),
    )


def _entry(source: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    entry = source.get(name)
    return entry if isinstance(entry, Mapping) else {}
