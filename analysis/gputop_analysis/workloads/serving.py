"""Serving a decoder: memory of weights and KV cache, seconds of a prefill and of a decoded token,
by roofline.

As in Pope et al. 2022 (arXiv:2211.05102, sections 2 and 3): a prefill is bound by products, a
decode step by reading the weights and the cache. A bound, not a forecast: for small batches the
launches and the scheduler of a real server come on top. All sizes are of one GPU of a
tensor-parallel group; arrays over groups and batches.
"""

from __future__ import annotations

import numpy as np

from gputop_analysis.catalog.params import moe_layers, params
from gputop_analysis.planner import communication, layers
from gputop_analysis.planner.collectives import LINK_HOP_S, all_reduce, group
from gputop_analysis.planner.hardware import Cluster
from gputop_analysis.planner.job import Job
from gputop_analysis.planner.layout import Floats, Layouts
from gputop_analysis.planner.products import attention_dims
from gputop_analysis.vram.setup import ModelShape

KV_BYTES = 2.0
"""The cache stays in 16 bits, whatever type the weights have."""
ONE_SHOT_BYTES = 256 * 1024
"""Up to here servers sum over NVLink in one exchange (vLLM, csrc/custom_all_reduce.cuh)."""
PREFILL_TOKENS = 8192
"""Tokens of one forward pass at most; longer prefills go in pieces (``max_num_batched_tokens``)."""
_WEIGHT_BYTES = {"fp8": 1.0, "bf16": 2.0, "fp16": 2.0, "fp32": 4.0}


def kv_bytes_per_token(model: ModelShape, tp: Floats) -> Floats:
    """Cache of one token on one GPU; undivided heads are replicated, MLA's latent is on each."""
    if model.mla_kv_rank:
        return KV_BYTES * model.layers * (model.mla_kv_rank + model.mla_rope_dim) + 0.0 * tp
    width, value_width = attention_dims(model)
    heads = np.maximum((model.kv_heads or model.heads) / tp, 1.0)
    return KV_BYTES * model.layers * heads * (width + value_width)


def weight_bytes(model: ModelShape, dtype: str, tp: Floats) -> Floats:
    """Weights on one GPU. Embedding, head and norms stay in 16 bits where the products are in 8."""
    counts = params(model)
    wide = counts["embeddings"] + counts["head"] + counts["norms"]
    narrow = sum(counts.values()) - wide
    size = _WEIGHT_BYTES[dtype]
    return (narrow * size + wide * max(size, 2.0)) / tp


def work_bytes(model: ModelShape, tokens: Floats, tp: Floats) -> Floats:
    """Buffers of one forward pass: the widest product's in and output, two hidden states."""
    return (
        2.0
        * tokens
        * (2 * model.hidden + 2 * np.maximum(model.ffn, model.moe_ffn * max(model.top_k, 1)) / tp)
    )


def prefill_seconds(
    model: ModelShape, cluster: Cluster, dtype: str, tp: Floats, prompts: Floats, *, prompt: int
) -> Floats:
    """Seconds from a batch's prompts to first tokens: one forward, the head for the last."""
    layouts = Layouts.of(tp=tp, micro_batch=prompts)
    job = Job(model, prompt, int(np.max(prompts)), dtype)
    moes = moe_layers(model)
    seconds = 0.0 * layouts.tp
    for moe, count in ((False, model.layers - moes), (True, moes)):
        if count:
            seconds = seconds + count * layers.layer(job, cluster.device, layouts, moe).forward
    forward, _ = communication.tensor_parallel(job, cluster, layouts)
    return seconds + model.layers * forward


def decode_seconds(
    model: ModelShape, cluster: Cluster, dtype: str, tp: Floats, batch: Floats, *, context: float
) -> Floats:
    """One further token of every sequence of a batch, with ``context`` tokens in the cache."""
    chip = cluster.device
    counts = params(model)
    routed = counts["experts"]
    touched = 0.0
    if model.experts:
        touched = 1 - (1 - model.top_k / model.experts) ** batch
    size = _WEIGHT_BYTES[dtype]
    always = (
        weight_bytes(model, dtype, tp)
        - (routed + counts["embeddings"] * (not model.tied_embeddings)) * size / tp
    )
    moved = always + touched * routed * size / tp + batch * context * kv_bytes_per_token(model, tp)
    active = (
        sum(counts.values())
        - routed
        + (routed * model.top_k / model.experts if model.experts else 0.0)
    )
    width, value_width = attention_dims(model)
    flops = (
        2.0 * batch * (active + context * model.layers * model.heads * (width + value_width)) / tp
    )
    reading = moved / (chip.bytes_per_s * chip.efficiency.memory_share)
    return np.maximum(reading, flops / (chip.flops(dtype) * chip.matmul_share(dtype))) + _sums(
        model, cluster, tp, batch
    )


def _sums(model: ModelShape, cluster: Cluster, tp: Floats, batch: Floats) -> Floats:
    """Two sums a layer over the tensor-parallel group."""
    message = 2.0 * batch * model.hidden
    ranks = group(cluster, tp, 1)
    one_shot = LINK_HOP_S + message * (tp - 1) / ranks.bytes_per_s
    small = (message <= ONE_SHOT_BYTES) & (ranks.nodes == 1) & cluster.switched
    seconds = np.where(small, one_shot, all_reduce(cluster, ranks, message))
    return np.where(tp > 1, 2 * model.layers * seconds, 0.0)
