"""Choice of tensor-parallel group and batch to serve a model: throughput, or streaming."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gputop_analysis.planner.hardware import Cluster
from gputop_analysis.planner.layout import Floats
from gputop_analysis.planner.memory import CONTEXT_BYTES
from gputop_analysis.units import GIB
from gputop_analysis.vram.setup import ModelShape
from gputop_analysis.workloads import serving

USED_SHARE = 0.9
"""Usable share of the GPU's memory (vLLM's ``gpu_memory_utilization``)."""
MOST_BATCH = 1024


@dataclass(frozen=True, slots=True)
class Serving:
    """Requirements of a server: the model, its requests, and how fast it must answer."""

    model: ModelShape
    prompt: int
    output: int
    """Tokens that come in and go out with each request."""
    dtype: str = "bf16"
    first_token_s: float = float("inf")
    """Longest wait for the first token; infinite for batches."""
    token_s: float = float("inf")
    """Longest time between two tokens of an answer, under full load."""


@dataclass(frozen=True, slots=True)
class InferenceServer:
    """One way to serve it: replicas of ``tp`` GPUs, each with ``batch`` sequences at a time."""

    tp: int
    replicas: int
    batch: int
    first_token_s: float
    """Latency in seconds of the first token of a prompt that joins a running batch."""
    decode_s: float
    """Latency in seconds of one further token, no prompt in between."""
    token_s: float
    """The mean under full load, the prefills of the others among it."""
    tokens_per_s: float
    """Generated, all replicas."""
    weights_gib: float
    kv_gib: float
    device_total_gib: float
    keeps_limits: bool
    usd_per_million_tokens: float | None

    @property
    def name(self) -> str:
        return f"TP{self.tp} x{self.replicas} batch {self.batch}"

    def to_json(self) -> dict[str, Any]:
        """Stable names with units."""
        return {
            "name": self.name,
            "tp": self.tp,
            "replicas": self.replicas,
            "batch": self.batch,
            "time_to_first_token_ms": 1e3 * self.first_token_s,
            "decode_step_ms": 1e3 * self.decode_s,
            "time_per_token_ms": 1e3 * self.token_s,
            "tokens_per_s": self.tokens_per_s,
            "weights_gib": self.weights_gib,
            "kv_cache_gib": self.kv_gib,
            "device_total_gib": self.device_total_gib,
            "keeps_limits": self.keeps_limits,
            "usd_per_million_tokens": self.usd_per_million_tokens,
        }


def servers(
    request: Serving, cluster: Cluster, usd_per_gpu_hour: float | None = None
) -> list[InferenceServer]:
    """Every group and batch that fits: those within the limits first, then by generated tokens a
    second.

    Raises:
        ValueError: not even one sequence fits; the message says what is missing.
    """
    tp, batch = _grid(request.model, cluster)
    total, weights, cache = memory_bytes(request, tp, batch)
    room = USED_SHARE * cluster.device.usable_bytes
    fits = total <= room
    if not fits.any():
        fewest = int(np.argmin(total))
        raise ValueError(
            f"{request.model.name} does not fit: {total[fewest] / GIB:.1f} GiB a GPU with "
            f"TP{tp[fewest]:.0f} and one "
            f"sequence, {room / GIB:.1f} GiB of {cluster.device.name} may be used"
        )
    tp, batch, total, weights, cache = (
        values[fits] for values in (tp, batch, total, weights, cache)
    )
    first, decode, token = times(request, cluster, tp, batch)
    replicas = cluster.gpus // tp
    rate = replicas * batch / token
    within_limits = (first <= request.first_token_s) & (token <= request.token_s)
    order = np.lexsort((-rate, ~within_limits))
    if usd_per_gpu_hour is None:
        rent = None
    else:
        rent = usd_per_gpu_hour * cluster.gpus / 3600 / rate * 1e6
    candidates = []
    for i in order:
        candidates.append(
            InferenceServer(
                tp=int(tp[i]),
                replicas=int(replicas[i]),
                batch=int(batch[i]),
                first_token_s=float(first[i]),
                decode_s=float(decode[i]),
                token_s=float(token[i]),
                tokens_per_s=float(rate[i]),
                weights_gib=float(weights[i]) / GIB,
                kv_gib=float(cache[i]) / GIB,
                device_total_gib=float(total[i]) / GIB,
                keeps_limits=bool(within_limits[i]),
                usd_per_million_tokens=None if rent is None else float(rent[i]),
            )
        )
    return candidates


def memory_bytes(request: Serving, tp: Floats, batch: Floats) -> tuple[Floats, Floats, Floats]:
    """Bytes of a GPU, arrays over the grid: in all, of weights, of whole sequences' cache."""
    weights = serving.weight_bytes(request.model, request.dtype, tp)
    cache = (
        batch * (request.prompt + request.output) * serving.kv_bytes_per_token(request.model, tp)
    )
    tokens = np.minimum(batch * request.prompt, serving.PREFILL_TOKENS)
    return (
        weights + cache + serving.work_bytes(request.model, tokens, tp) + CONTEXT_BYTES,
        weights,
        cache,
    )


def times(
    request: Serving, cluster: Cluster, tp: Floats, batch: Floats
) -> tuple[Floats, Floats, Floats]:
    """Seconds to the first token, of a decode step at the mean length of an answer, and of a token
    under full load.

    A server that is full prefills a prompt for every answer that ends, so each sequence waits for
    all prefills once.
    """
    model, dtype = request.model, request.dtype
    decode = serving.decode_seconds(
        model, cluster, dtype=dtype, tp=tp, batch=batch, context=request.prompt + request.output / 2
    )
    alone = serving.prefill_seconds(
        model, cluster, dtype=dtype, tp=tp, prompts=np.ones_like(batch), prompt=request.prompt
    )
    together = serving.prefill_seconds(
        model, cluster, dtype=dtype, tp=tp, prompts=batch, prompt=request.prompt
    )
    return alone + decode, decode, decode + together / request.output


def _grid(model: ModelShape, cluster: Cluster) -> tuple[Floats, Floats]:
    largest_tp = min(cluster.gpus, cluster.gpus_per_node)
    groups = []
    for n in range(1, largest_tp + 1):
        if model.heads % n == 0 and cluster.gpus % n == 0:
            groups.append(n)
    batches = [2**n for n in range(MOST_BATCH.bit_length())]
    tp, batch = np.meshgrid(np.asarray(groups), np.asarray(batches), indexing="ij")
    return tp.ravel(), batch.ravel()
