"""The model of a benchmark row from its columns, and the habits of the framework it names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import Any

from gputop_analysis.catalog import model as known_model
from gputop_analysis.catalog.gpu_names import find_gpu
from gputop_analysis.catalog.params import params
from gputop_analysis.planner.frameworks import Framework, named, of_text
from gputop_analysis.planner.job import FrameworkHabits
from gputop_analysis.vram.setup import ModelShape

Row = Mapping[str, str]
OF_MEGATRON = ("megatron", "megatron-deepspeed", "deepspeed")
_MLA = re.compile(r"MLA (\d+)/(\d+)/(\d+)/(\d+)/(\d+)")


def shape_of(row: Row) -> ModelShape:
    """From the columns; what they leave out from the catalog's model of that name, and last from
    the parameter count.

    Raises LookupError if neither says enough.
    """
    named = _by_name(row.get("model", ""))
    if not count(row, "hidden") and named is None:
        raise LookupError("neither the model's dimensions nor a name that the catalog knows")
    if not count(row, "hidden") and named is not None:
        return replace(named, layers=count(row, "layers") or named.layers)
    hidden = count(row, "hidden")
    heads = count(row, "heads") or (
        named.heads if named and named.hidden == hidden else _heads_of(hidden)
    )
    shape = ModelShape(
        name=row.get("model", ""),
        hidden=hidden,
        layers=count(row, "layers"),
        heads=heads,
        kv_heads=count(row, "kv_heads") or heads,
        ffn=count(row, "ffn") or 4 * hidden,
        vocab=count(row, "vocab") or 50257,
    )
    shape = replace(shape, **_experts(row, named))
    shape = _like_params(shape, _number(row.get("params")))
    if not shape.layers:
        raise LookupError("no number of layers")
    return shape


def framework_of(row: Row) -> Framework:
    """The framework that a row names; Megatron-LM where it names none that is known. Rows of V100
    and A100 are of the time before Megatron-Core, unless they say otherwise.
    """
    text = row.get("framework") or ""
    framework = of_text(text)
    gpu = find_gpu(row.get("gpu_model", ""))
    old = gpu is not None and gpu.chip in ("v100", "p100", "a100")
    if (
        old
        and framework is not None
        and framework.name in OF_MEGATRON
        and "core" not in text.lower()
    ):
        return replace(named("megatron==early"), recipe=framework.recipe)
    return framework or named("megatron")


def habits_of(row: Row, dtype: str) -> FrameworkHabits:
    """What the named framework does (data/frameworks.csv), and what the notes say of this run."""
    framework = framework_of(row)
    text, notes = (row.get("framework") or "").lower(), (row.get("notes") or "").lower()
    habits = framework.habits
    if framework.release == "early":
        halves = dtype == "fp16" and (row.get("zero") or "0") == "0"
        staged = "deepspeed" not in text
        return replace(
            habits,
            gradient_bytes=2 if halves else 4,
            split_pipeline_messages=staged,
            fused_accumulation=staged,
        )
    if framework.name == "nanotron":
        return habits
    overlaps = {
        "overlap_gradients": "overlaps disabled" not in notes and habits.overlap_gradients,
        "fused_elementwise": habits.fused_elementwise or "compile" in notes,
        "overlap_expert_parallel": habits.overlap_expert_parallel
        or bool(re.search(r"dualpipe|moe_a2a_overlap|overlap_moe", f"{text} {notes}")),
        "overlap_tensor_parallel": habits.overlap_tensor_parallel
        or bool(re.search(r"tp-comm-overlap on|async[ -]?tp", notes)),
        "fused_loss": bool(re.search(r"ce fusion|fused ce|liger", notes)),
        "dispatcher": _dispatcher(notes) or habits.dispatcher,
        "cuda_graphs": _graphs(notes) or habits.cuda_graphs,
    }
    return replace(habits, **overlaps)


def _dispatcher(notes: str) -> str:
    if re.search(r"deepep|hybridep|\bflex\b", notes):
        return "deepep"
    if re.search(r"dispatcher\W+all-?gather", notes):
        return "allgather"
    return ""


def _graphs(notes: str) -> str:
    if not re.search(r"cuda[ _-]?graph", notes) or re.search(
        r"(no|without) cuda[ _-]?graph", notes
    ):
        return ""
    if re.search(r"full[ _-]iteration|full cuda", notes):
        return "full"
    return "partial"


def _heads_of(hidden: int) -> int:
    """The usual number: heads of 128 values, or the next wider that divide."""
    return next(heads for heads in range(max(hidden // 128, 1), 0, -1) if hidden % heads == 0)


def _by_name(name: str) -> ModelShape | None:
    for tried in (name, re.sub(r"\s*\(.*?\)", "", name), re.sub(r"^[a-z]+-", "", name.lower())):
        try:
            return known_model(tried)
        except LookupError:
            continue
    return None


def _experts(row: Row, model_shape: ModelShape | None) -> dict[str, Any]:
    """Of a mixture of experts; widths stand in the notes or are those of the catalog's model."""
    if not count(row, "n_experts"):
        return {}
    notes = row.get("notes", "")
    fields: dict[str, Any] = {"experts": count(row, "n_experts"), "top_k": count(row, "top_k") or 1}
    base = model_shape or ModelShape(name="")
    fields["moe_ffn"] = (
        _in_notes(notes, r"moe_ffn (\d+)")
        or count(row, "moe_ffn")
        or base.moe_ffn
        or count(row, "ffn")
    )
    fields["shared_ffn"] = _in_notes(notes, r"shared ffn (\d+)") or base.shared_ffn
    if fields["shared_ffn"]:
        fields["shared_experts"] = 0
    else:
        fields["shared_experts"] = base.shared_experts
    fields["first_dense_layers"] = _in_notes(notes, r"(\d+) dense") or base.first_dense_layers
    if latent := _MLA.search(notes):
        names = ("mla_q_rank", "mla_kv_rank", "mla_nope_dim", "mla_rope_dim", "mla_v_dim")
        return fields | dict(zip(names, map(int, latent.groups()), strict=True))
    return fields | {
        key: getattr(base, key) for key in ModelShape.__dataclass_fields__ if key.startswith("mla_")
    }


def _like_params(shape: ModelShape, published: float) -> ModelShape:
    """Gated, tied or not: by the published parameter count; layers too where missing."""
    gated = (True,) if "llama" in shape.name.lower() else (True, False)
    if shape.ffn == 4 * shape.hidden and "llama" not in shape.name.lower():
        gated = (False,)
    variants = [
        replace(shape, gated_mlp=g, tied_embeddings=t) for g, t in product(gated, (True, False))
    ]
    if not published:
        return variants[0]
    if not shape.layers:
        variants = [
            replace(variant, layers=_layers_for(variant, published)) for variant in variants
        ]
    return min(variants, key=lambda variant: abs(sum(params(variant).values()) - published))


def _layers_for(shape: ModelShape, published: float) -> int:
    one_layer, two = (sum(params(replace(shape, layers=n)).values()) for n in (1, 2))
    return max(round((published - one_layer) / (two - one_layer)) + 1, 1)


def _in_notes(notes: str, pattern: str) -> int:
    match = re.search(pattern, notes)
    return int(match[1]) if match else 0


def count(row: Row, key: str) -> int:
    """The whole number of a cell; 0 where it is empty or none."""
    try:
        return max(int(float((row.get(key) or "0").replace(",", ""))), 0)
    except (ValueError, OverflowError):  # text, not a number, or infinite
        return 0


def _number(text: str | None) -> float:
    """0 where it is none."""
    try:
        value = float((text or "0").replace(",", ""))
    except ValueError:
        return 0.0
    return value if 0 < value < float("inf") else 0.0
