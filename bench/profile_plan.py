"""Which event profiles are made: families and their structures, ways of training, and the sizes of
the traces.

The sizes that one dimension takes in the traces stand to each other as primes that no other
dimension has, so that a storage's growth from trace to trace names its dimensions (see
``profile_terms.py``). Nothing is allocated, so they need not be small.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from gputop_analysis.vram.setup import Lora, ModelShape, Setup

TRACES = (0, 2, 1)
"""Which of the sizes each trace has; the first two tell most products apart."""
SIZES: dict[str, tuple[int, int, int]] = {
    "micro_batch": (3, 5, 11),
    "seq": (128 * 24 - 32, 128 * 26 - 32, 128 * 47 - 32),
    "hidden": (128 * 3 * 7, 128 * 5 * 11, 128 * 7 * 13),
    "heads": (24, 40, 56),
    "kv_heads": (8, 10, 14),
    "head_dim": (32 * 2, 32 * 5, 32 * 7),
    "ffn": (128 * 37, 128 * 41, 128 * 43),
    "vocab": (128 * 199, 128 * 509, 128 * 853),
    "max_position": (128 * 151, 128 * 157, 128 * 163),
    "token_types": (2, 3, 5),
    "experts": (6, 14, 10),
    "top_k": (2, 4, 6),
    "moe_ffn": (128 * 73, 128 * 79, 128 * 83),
    "shared_ffn": (128 * 89, 128 * 97, 128 * 109),
    "mla_q_rank": (128 * 113, 128 * 127, 128 * 131),
    "mla_kv_rank": (128 * 137, 128 * 139, 128 * 149),
    "mla_nope_dim": (96, 160, 112),
    "mla_rope_dim": (32, 96, 64),
    "mla_v_dim": (64, 96, 160),
    "rank": (8 * 61, 8 * 67, 8 * 71),
    "patch": (34, 38, 46),
    "side": (36, 42, 50),
    "vision_heads": (20, 28, 44),
    "vision_hidden": (20 * 104, 28 * 136, 44 * 152),
    "vision_ffn": (128 * 167, 128 * 173, 128 * 179),
}
"""``side``: patches along an edge of an image.

Batches are such that a fused loss takes as many pieces in each trace, and an embedding's backward
sorts.
"""
SHORT_SEQ = (SIZES["seq"][0], 128 * 14 - 32, 128 * 13 - 32)
"""Of families in ``SHORT``; as many pieces of a fused loss as with the others."""
SHORT = ("gpt2", "bert", "gemma3_text", "clip")
"""Families whose events change with the length: rows of position embeddings whose gradient is not
sorted (up to 3072, ``EmbeddingBackwardKernel.cu``), or a window that masks all longer sequences.
"""
LAYERS = 4
"""What ``vram.deepen`` takes: the first, two alike, the last."""
_PLAIN = ("hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "max_position")
_MHA = {"mha": True}
_TIED = {"tied_embeddings": True}
_SPLIT_HEADS = {"split": True}
"""Heads that share the width of the model: ``head_dim`` is ``hidden / heads``."""
_MOE = {"experts": True}
_LATENT = {"experts": True, "mla": True, "shared_experts": 2, "first_dense_layers": 1, **_MHA}

STRUCTURES: dict[str, tuple[dict[str, Any], ...]] = {
    "llama": ({}, _MHA, _TIED, {**_TIED, **_MHA}),
    "qwen2": (_SPLIT_HEADS, {**_SPLIT_HEADS, **_TIED}, {**_SPLIT_HEADS, **_MHA}),
    "qwen3": ({}, _TIED),
    "gemma2": (_TIED,),
    "gpt2": ({**_MHA, **_SPLIT_HEADS, **_TIED, "gated_mlp": False},),
    "gpt_bigcode": ({**_SPLIT_HEADS, **_TIED, "gated_mlp": False},),
    "mixtral": (_MOE,),
    "qwen3_moe": (_MOE,),
    "gemma": (_TIED, {**_TIED, **_MHA}),
    "gemma3_text": (_TIED,),
    "phi3": (_SPLIT_HEADS, {**_SPLIT_HEADS, **_MHA}, {**_SPLIT_HEADS, **_TIED}),
    "phi": ({**_MHA, **_SPLIT_HEADS, "gated_mlp": False},),
    "gpt_neox": ({**_MHA, **_SPLIT_HEADS, "gated_mlp": False},),
    "opt": ({**_MHA, **_SPLIT_HEADS, **_TIED, "gated_mlp": False},),
    "deepseek_v2": (_LATENT, {**_LATENT, "q_rank": True}),
    "deepseek_v3": ({**_LATENT, "q_rank": True, "shared_experts": 1}, _LATENT),
    "bert": ({**_MHA, **_SPLIT_HEADS, **_TIED, "gated_mlp": False, "token_types": True},),
    "olmo2": ({**_SPLIT_HEADS, **_MHA}, _SPLIT_HEADS),
    "glm4": ({},),
    "t5": ({**_MHA, **_TIED, "gated_mlp": False}, {**_MHA, **_TIED}),
    "vit": ({**_MHA, **_SPLIT_HEADS, "gated_mlp": False},),
    "clip": ({**_MHA, **_SPLIT_HEADS, "gated_mlp": False},),
}
OLDER_LOSSES = ("llama", "mixtral", "gpt_bigcode")
"""Families that get the losses of older releases of Transformers in the usual ways of training."""
WIDELY_TRAINED = ("llama", "qwen2", "qwen3", "gemma2", "gpt2")
"""Families that get fused losses in every way of training, and the usual targets of LoRA."""
ENCODERS = ("bert", "vit", "clip")
OWN_LOSS = (*ENCODERS, "t5")
"""Families without a fused loss: no labels that are shifted, or no large vocabulary."""
MIXTURES = ("mixtral", "qwen3_moe", "deepseek_v2", "deepseek_v3")
ALL_LINEAR = ("all-linear",)
ATTENTION = ("q_proj", "v_proj")
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")
FUSED = (
    "phi",
    "phi3",
    "gpt2",
    "gpt_neox",
    "opt",
    "glm4",
    "bert",
    "deepseek_v2",
    "deepseek_v3",
    "t5",
    "vit",
    "clip",
)
"""Families whose projections have other names: adapters go on all linear layers."""


def shape(family: str, structure: dict[str, Any], at: int) -> ModelShape:
    """The model of the trace number ``at`` with the structure asked for."""
    size: dict[str, Any] = {name: SIZES[name][at] for name in _PLAIN}
    if structure.get("mha"):
        size["kv_heads"] = size["heads"]
    if structure.get("split"):
        size["head_dim"] = size["hidden"] // size["heads"]
    if structure.get("experts"):
        size |= {name: SIZES[name][at] for name in ("experts", "top_k", "moe_ffn")}
    if structure.get("token_types"):
        size["token_types"] = SIZES["token_types"][at]
    if structure.get("mla"):
        size |= {
            name: SIZES[name][at]
            for name in ("mla_kv_rank", "mla_nope_dim", "mla_rope_dim", "mla_v_dim")
        }
    if structure.get("q_rank"):
        size["mla_q_rank"] = SIZES["mla_q_rank"][at]
    if family == "vit":
        size |= {"max_position": SIZES["side"][at] ** 2, "vision_patch": SIZES["patch"][at]}
    if family == "clip":
        size |= {name: SIZES[name][at] for name in ("vision_hidden", "vision_heads", "vision_ffn")}
        size |= {"vision_layers": LAYERS, "vision_patch": SIZES["patch"][at]}
        size["vision_image"] = SIZES["side"][at] * SIZES["patch"][at]
    dense = structure.get("first_dense_layers", 0)
    return ModelShape(
        name=family,
        family=family,
        layers=LAYERS,
        gated_mlp=structure.get("gated_mlp", True),
        tied_embeddings=structure.get("tied_embeddings", False),
        shared_experts=structure.get("shared_experts", 0),
        first_dense_layers=dense,
        **size,
    )


class Way(NamedTuple):
    """Fields of a setup, and how much less than the commonest way it is worth a profile."""

    fields: dict[str, Any]
    rank: int


def trainings(family: str, structure: dict[str, Any]) -> Iterator[Way]:
    """What a structure gets a profile for; the first structure of Llama gets the most."""
    core = family == "llama" and structure is STRUCTURES[family][0]
    wide = family in WIDELY_TRAINED
    behind = 0 if core else 2 if wide else 4
    for way in _ways(family, core, wide):
        for checkpointing in ("full", "none"):
            for detail in _details(family, core, wide, way.fields, checkpointing):
                fields = {**way.fields, **detail.fields, "checkpointing": checkpointing}
                yield Way(fields, behind + way.rank + detail.rank)


def _ways(family: str, core: bool, wide: bool) -> Iterator[Way]:
    """Precision, and full training, LoRA or QLoRA."""
    yield Way({}, 0)
    if (
        family not in MIXTURES
    ):  # a grouped product of experts does not go through a trace with autocast
        yield Way({"weights": "fp32"}, 1)
        yield Way({"dtype": "fp32"}, 3)
    if core:
        yield Way({"autocast": True}, 2)
    for targets in (
        (ALL_LINEAR, PROJECTIONS, ATTENTION) if wide and family not in FUSED else (ALL_LINEAR,)
    ):
        plain, dropped = Lora(targets=targets), Lora(targets=targets, dropout=0.1)
        yield Way({"lora": plain}, 0)
        if wide:
            yield Way({"lora": dropped}, 2)
            yield Way({"lora": dropped, "autocast": True}, 2)
        if core:
            yield Way({"lora": replace(dropped, dtype="bf16")}, 3)
        if family in (*ENCODERS, *MIXTURES) or targets == ATTENTION:
            continue
        yield Way({"lora": plain, "quantized": "nf4"}, 1)
        if wide or family == "gpt_bigcode":
            yield Way({"lora": dropped, "quantized": "nf4", "autocast": True}, 2)
        if family == "llama" and targets == PROJECTIONS:
            prepared = {"weights": "fp32", "autocast": True}
            yield Way({"lora": dropped, "quantized": "nf4", **prepared}, 2)


def _details(
    family: str, core: bool, wide: bool, way: dict[str, Any], checkpointing: str
) -> Iterator[Way]:
    """Attention and loss."""
    yield Way({}, 0)
    special = "autocast" in way or ("dtype" in way and not core)
    usual = not special and (way.get("lora") is None or not way["lora"].dropout)
    if family not in OWN_LOSS and (not way or (wide and usual and way.get("weights") != "fp32")):
        yield Way({"loss": "fused"}, 1)
    if family in ("llama", "gpt2") and not way:
        yield Way({"attention": "eager"}, 2)
        yield Way({"loss": "chunked"}, 2)
    if checkpointing != "full":
        return
    if core or (family in OLDER_LOSSES and _usual(way)):
        yield Way({"transformers": "4.48"}, 1)
        yield Way({"transformers": "4.45"}, 2)
    if core and _usual(way):
        yield from _kernels(own_adapters=way.get("lora") is not None)


def _usual(way: dict[str, Any]) -> bool:
    """Full training, or adapters with dropout on the attention's projections."""
    lora = way.get("lora")
    if lora is None:
        return way in ({}, {"autocast": True})
    return bool(lora.dropout) and lora.dtype == "fp32" and lora.targets in (PROJECTIONS, ALL_LINEAR)


def _kernels(own_adapters: bool) -> Iterator[Way]:
    """Fused kernels, with a fused linear loss and with one of their own on whole logits."""
    for gated in (False, True):
        kernels = {"kernels": True, "gated_kernel": gated}
        yield Way({**kernels, "loss": "fused"}, 2)
        for version in ("",) if gated and own_adapters else ("", "4.48", "4.45"):
            yield Way({**kernels, "transformers": version}, 2)


def setup(family: str, structure: dict[str, Any], training: dict[str, Any], at: int) -> Setup:
    """What the trace number ``at`` is asked; plain SGD, whose update allocates nothing."""
    training = dict(training)
    if (lora := training.pop("lora", None)) is not None:
        training["lora"] = Lora(SIZES["rank"][at], lora.targets, lora.dtype, lora.dropout)
    model = shape(family, structure, at)
    seq = (SHORT_SEQ if family in SHORT else SIZES["seq"])[at]
    return Setup(
        model=model, seq=seq, micro_batch=SIZES["micro_batch"][at], optimizer="sgd", **training
    )
