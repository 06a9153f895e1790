"""The numbers that the sizes of a training step's tensors are products of."""

from __future__ import annotations

from gputop_analysis.catalog.params import head_width, shared_width
from gputop_analysis.vram.setup import ModelShape, Setup

PROJECTED = "heads + 2 kv_heads"
_UNUSED_BY_LATENT = ("kv_heads", "head_dim", "head_dim in blocks")
BLOCK = 128
"""Rows that a kernel of FlashAttention works on at once; its workspaces are rounded up to them."""
ALIGNED = 32
"""Rows to which the memory-efficient kernel rounds its sums up (``kAlignLSE``,
``mem_eff_attention/kernel_forward.h``); of texts, whose lengths are such multiples in most
trainings, the few bytes more are left out.
"""


def dims(setup: Setup) -> dict[str, int]:
    """By name; counts of elements along an axis. What the setup does not have is left out.

    Sums that appear as one axis (a fused projection of queries, keys and values, the two parts of a
    latent head) have names of their own, so that every size is a product.
    """
    shape = setup.model
    kv_heads = shape.kv_heads or shape.heads
    seq = tokens_of(setup)
    sizes = {
        "micro_batch": setup.micro_batch,
        "seq": seq,
        "seq + 1": seq + 1,
        "seq - 1": seq - 1,
        "seq in blocks": _up(seq, BLOCK),
        "seq aligned": _up(seq, ALIGNED) if shape.family == "vit" else 0,
        "hidden": shape.hidden,
        "heads": shape.heads,
        "kv_heads": kv_heads,
        "head_dim": head_width(shape),
        "head_dim in blocks": _head_blocks(head_width(shape)),
        PROJECTED: shape.heads + 2 * kv_heads if kv_heads != shape.heads else 0,
        "ffn": shape.ffn,
        "vocab": shape.vocab,
        "positions": shape.max_position,
        "positions + 2": shape.max_position + 2
        if shape.family == "opt" and shape.max_position
        else 0,
        "token_types": shape.token_types,
        "experts": shape.experts,
        "top_k": shape.top_k,
        "moe_ffn": shape.moe_ffn if shape.experts else 0,
        "shared_ffn": shared_width(shape) if shape.experts and not shape.shared_experts else 0,
        "rank": setup.lora.rank if setup.lora else 0,
        **_latent(setup),
        **_loss_rows(setup),
        **_seen(shape),
    }
    unused = _UNUSED_BY_LATENT if shape.mla_kv_rank else ()
    return {name: size for name, size in sizes.items() if size and name not in unused}


def tokens_of(setup: Setup) -> int:
    """Of a sequence: patches and one where a model only sees, at most a text tower's places."""
    shape = setup.model
    if shape.family == "vit":
        return shape.max_position + 1
    if shape.family == "clip":
        return min(setup.seq, shape.max_position)
    return setup.seq


def _seen(shape: ModelShape) -> dict[str, int]:
    """Of the patches of an image, and of the tower that takes them."""
    if shape.family == "vit":
        return {"patch": shape.vision_patch}
    if shape.family != "clip":
        return {}
    patches = (shape.vision_image // shape.vision_patch) ** 2
    width = shape.vision_hidden // shape.vision_heads
    return {
        "patch": shape.vision_patch,
        "patches": patches,
        "patches + 1": patches + 1,
        "patches + 1 in blocks": _up(patches + 1, BLOCK),
        "patches + 1 aligned": _up(patches + 1, ALIGNED),
        "vision_hidden": shape.vision_hidden,
        "vision_heads": shape.vision_heads,
        "vision head_dim": width,
        "vision head_dim in blocks": _head_blocks(width),
        "vision_ffn": shape.vision_ffn,
    }


def _loss_rows(setup: Setup) -> dict[str, int]:
    """Rows of logits that a fused loss has in memory at a time, and of the last piece.

    ``chunk_size`` of ``liger_kernel/ops/fused_linear_cross_entropy.py``: the next power of two.
    """
    if setup.loss != "fused" or not setup.model.vocab:
        return {}
    pieces = -(-setup.model.vocab // setup.model.hidden)
    rows = min(1 << (-(-setup.tokens // pieces) - 1).bit_length(), setup.tokens)
    return {"loss rows": rows, "last loss rows": setup.tokens % rows or rows}


def _head_blocks(width: int) -> int:
    """``round_multiple(head_size, head_size <= 128 ? 32 : 64)`` (FlashAttention, flash_api.cpp)."""
    return _up(width, 32 if width <= 128 else 64)


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def _latent(setup: Setup) -> dict[str, int]:
    """Of multi-head latent attention."""
    shape = setup.model
    if not shape.mla_kv_rank:
        return {}
    return {
        "q_rank": shape.mla_q_rank,
        "kv_rank": shape.mla_kv_rank,
        "nope": shape.mla_nope_dim,
        "rope": shape.mla_rope_dim,
        "v_dim": shape.mla_v_dim,
        "nope + rope": shape.mla_nope_dim + shape.mla_rope_dim,
        "kv_rank + rope": shape.mla_kv_rank + shape.mla_rope_dim,
        "nope + v_dim": shape.mla_nope_dim + shape.mla_v_dim,
    }
