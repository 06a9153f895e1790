"""The model of a row: from the catalog by its name, from the columns of dimensions, or both where
they agree.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import product

from gputop_analysis import catalog
from gputop_analysis.vram.setup import ModelShape
from vram_cases import text

COLUMNS = ("hidden", "layers", "heads", "kv_heads", "ffn", "vocab", "head_dim")
FAMILIES = (
    ("mixtral", "mixtral"),
    ("mistral|zephyr", "mistral"),
    ("llama|alpaca|vicuna|yi-|tinyllama", "llama"),
    ("qwen-?3", "qwen3"),
    ("qwen-?(1[._]5|2)", "qwen2"),
    ("qwen", "qwen"),
    ("gemma-?3", "gemma3_text"),
    ("gemma-?2", "gemma2"),
    ("gemma", "gemma"),
    ("phi-?[34]", "phi3"),
    ("phi", "phi"),
    ("falcon", "falcon"),
    ("neox|pythia|stablelm|gpt-?j", "gpt_neox"),
    ("bloom", "bloom"),
    ("opt", "opt"),
    ("mpt", "mpt"),
    ("bert", "bert"),
    ("t5", "t5"),
    ("starcoder-?2", "starcoder2"),
    ("santacoder|starcoder|bigcode", "gpt_bigcode"),
    ("gpt", "gpt2"),
)
"""What a name contains, and the family that it then belongs to; the first that matches."""

TUNED = (
    (r"vicuna-(7|13)b-v1\.5", r"llama-2-\1b"),
    (r"zephyr-7b-(?:alpha|beta)", "mistral-7b-v0.1"),
    (r"r1-distill-qwen-(7|14|32)b", r"qwen2.5-\1b"),
    (r"r1-distill-llama-8b", "llama-3.1-8b"),
    (r"r1-distill-llama-70b", "llama-3.3-70b"),
)
"""Models that go by a name of their own, and those that they were tuned from, by their cards."""
IN_BITS = re.compile(r"-(?:unsloth-)?(?:bnb-)?([48])-?bits?$", re.IGNORECASE)
"""The end of a name that says how the weights are quantised."""


class Unknown(LookupError):
    """A row whose model cannot be told; its text says why."""


def shape_of(row: Mapping[str, str]) -> ModelShape:
    """The model of a row.

    Raises:
        Unknown: neither its name is in the catalog nor are its dimensions given.
    """
    name = row.get("model", "").strip()
    given = {column: text.count(row.get(column, "")) or 0 for column in COLUMNS}
    known = _catalogued(name)
    if known and _agrees(known, given):
        return known
    if (
        known
        and _agrees(known, {**given, "layers": 0, "vocab": 0})
        and given["ffn"] in (0, known.ffn)
    ):
        layers, vocab = given["layers"] or known.layers, given["vocab"] or known.vocab
        return replace(
            known, name=f"{known.name} of {layers} layers", layers=layers, vocab=vocab, params=0
        )
    if not (given["hidden"] and given["layers"]):
        if known:
            raise Unknown(f"its dimensions are not those of {known.name} and do not suffice alone")
        raise Unknown(
            f"the model is not in the catalog and its dimensions are not given: {name or 'no name'}"
        )
    return from_columns(name, given, text.parameters(row.get("params", "")) or 0)


def _catalogued(name: str) -> ModelShape | None:
    name = IN_BITS.sub("", name)
    tuned = ((re.search(words, name.lower()), origin) for words, origin in TUNED)
    name = next((found.expand(origin) for found, origin in tuned if found), name)
    for spelling in (
        name,
        re.sub(r"(?<=[a-z])(?=\d)", "-", name.lower()),
        re.sub(r"[_ ]", "-", name.lower()),
    ):
        try:
            return catalog.model(spelling) if spelling else None
        except LookupError:
            continue
    return None


def _agrees(shape: ModelShape, given: Mapping[str, int]) -> bool:
    """Whether no stated dimension contradicts; vocabularies are padded by some, so they may differ
    a little.
    """
    same = all(
        not given[column] or given[column] == getattr(shape, column)
        for column in ("hidden", "layers", "heads")
    )
    return same and (not given["vocab"] or abs(given["vocab"] - shape.vocab) <= 0.05 * shape.vocab)


def from_columns(name: str, given: Mapping[str, int], params: int) -> ModelShape:
    """A shape of those dimensions; whether its MLP is gated and its embeddings are tied is what
    comes nearest to the stated number of parameters.
    """
    family = next((family for words, family in FAMILIES if re.search(words, name.lower())), "llama")
    kv_heads = given["kv_heads"] or given["heads"]
    base = ModelShape(
        name or f"{given['layers']} layers of {given['hidden']}",
        family,
        hidden=given["hidden"],
        layers=given["layers"],
        heads=given["heads"] or max(given["hidden"] // 128, 1),
        kv_heads=kv_heads or max(given["hidden"] // 128, 1),
        head_dim=given["head_dim"],
        ffn=given["ffn"] or 4 * given["hidden"],
        vocab=given["vocab"] or 32_000,
        gated_mlp=given["ffn"] != 4 * given["hidden"],
        max_position=2048,
    )
    if not params:
        return base
    readings = [
        replace(base, gated_mlp=gated, tied_embeddings=tied)
        for gated, tied in product((True, False), repeat=2)
    ]
    return replace(
        min(readings, key=lambda shape: abs(catalog.total(shape) - params)), params=params
    )
