"""Megatron-LM's arguments, where a row's notes hold them, as fields of a setup."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

from gputop_analysis.vram.setup import ModelShape

TOKENIZERS = {
    "GPT2BPETokenizer": 50_257,
    "BertWordPieceLowerCase": 30_522,
    "BertWordPieceCase": 28_996,
    "Llama2Tokenizer": 32_000,
}
"""Vocabulary of the tokenizers that have but one; GPT2BPE is what Megatron's GPT examples use where
none is named.
"""
DIVISIBLE = 128
"""``--make-vocab-size-divisible-by``."""


class NotModelled(ValueError):
    """Arguments that no formula here covers; its text says which."""


def shape_of(
    shape: ModelShape, args: dict[str, Any], test: str, *, tp: int, vocab: int | None, seq: int
) -> ModelShape:
    """The model that the arguments describe.

    Raises:
        NotModelled: it has layers of other kinds, or its dimensions are not all said.
    """
    _refuse(args, test)
    gated = bool(args.get("swiglu"))
    heads = shape.heads
    return replace(
        shape,
        family=_family(args, test),
        gated_mlp=gated,
        kv_heads=int(args.get("num-query-groups", 0)) or heads,
        head_dim=int(args.get("kv-channels", 0)),
        vocab=padded_vocab(args, test, tp, vocab),
        tied_embeddings=not args.get("untie-embeddings-and-output-weights"),
        max_position=seq,
        params=0,
        **_experts(shape, args),
    )


def _family(args: dict[str, Any], test: str) -> str:
    """The family of Transformers that has the same norms, biases and position table."""
    if re.search(r"\bbert", test):
        return "bert"
    if args.get("normalization") == "RMSNorm":
        return "llama"
    return (
        "gpt2"
        if args.get("position-embedding-type", "learned_absolute") == "learned_absolute"
        else "gpt_neox"
    )


def _refuse(args: dict[str, Any], test: str) -> None:
    if "hybrid" in str(args.get("spec", "")) or "mamba" in test:
        raise NotModelled("hybrid models with state-space layers are not modelled")
    if re.search(r"\bt5|\bretro|mimo|multimodal|llava|vlm", test):
        raise NotModelled("encoder-decoder and multimodal models of Megatron-LM are not modelled")
    if "cuda-graph-impl" in args or "cudagraph" in test:
        raise NotModelled("the memory of captured CUDA graphs is not modelled")
    if args.get("defer-embedding-wgrad-compute"):
        raise NotModelled(
            "weight gradients of the head that wait for a whole step are not modelled"
        )
    if args.get("multi-latent-attention") and "kv-lora-rank" not in args:
        raise NotModelled("the ranks of its latent attention are not stated")


def padded_vocab(args: dict[str, Any], test: str, tp: int, vocab: int | None) -> int:
    """Rows of the embedding: rounded up to a multiple of ``make-vocab-size-divisible-by`` x TP.

    Raises:
        NotModelled: neither the vocabulary nor a tokenizer of a known one is named.
    """
    default = "BertWordPieceLowerCase" if re.search(r"\bbert", test) else "GPT2BPETokenizer"
    size = vocab or TOKENIZERS.get(str(args.get("tokenizer-type", default)))
    if not size:
        raise NotModelled("the size of its vocabulary is not stated")
    step = int(args.get("make-vocab-size-divisible-by", DIVISIBLE)) * tp
    return math.ceil(size / step) * step


def _experts(shape: ModelShape, args: dict[str, Any]) -> dict[str, int]:
    if not args.get("num-experts"):
        return {}
    return {
        "experts": int(args["num-experts"]),
        "top_k": int(args.get("moe-router-topk", 2)),
        "moe_ffn": int(args.get("moe-ffn-hidden-size", shape.ffn)),
        "shared_ffn": int(args.get("moe-shared-expert-intermediate-size", 0)),
        "first_dense_layers": _first_dense(str(args.get("moe-layer-freq", ""))),
    }


def _first_dense(freq: str) -> int:
    found = re.match(r"\(?\[0\]\*(\d+)", freq)
    return int(found[1]) if found else 0


def instances(said: dict[str, Any]) -> int:
    """Copies of the distributed optimizer: ``--num-distributed-optimizer-instances`` is 2 in the
    tests that are named after it.
    """
    return 2 if "multi_dist_optimizer_instances" in str(said.get("test", "")) else 1


def attention(args: dict[str, Any]) -> str | None:
    """The attention's kind, where the arguments name its backend."""
    backend = str(args.get("attention-backend", ""))
    if args.get("transformer-impl") == "local" or backend in ("unfused", "local"):
        return "eager"
    return "flash" if backend in ("flash", "fused") or args.get("use-flash-attn") else None


def dropout(args: dict[str, Any] | None) -> float:
    """Of hidden states and attention; 0.1 is Megatron-LM's default, and none what models are
    trained with elsewhere.
    """
    if not args:
        return 0.0
    return max(float(args.get(f"{kind}-dropout", 0.1)) for kind in ("hidden", "attention"))
