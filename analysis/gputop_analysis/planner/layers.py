"""Seconds of a transformer layer and of the head for a micro-batch, communication apart."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gputop_analysis.catalog.families import traits
from gputop_analysis.planner import gemm
from gputop_analysis.planner.adapters import adapter_bytes, dequantised_bytes
from gputop_analysis.planner.hardware import Device
from gputop_analysis.planner.job import Job
from gputop_analysis.planner.layout import Floats, Layouts
from gputop_analysis.planner.products import Product, attention_dims, products
from gputop_analysis.vram.formula.activations import EAGER_GELU
from gputop_analysis.vram.formula.discarded import gives_up_outputs
from gputop_analysis.vram.setup import ModelShape

FORWARD_KERNELS = 24
"""Of a dense eager layer, fused as usual: 4 products, attention, 2 norms, rotary, residuals."""
COLLECTIVE_KERNELS = 2
"""More of them in a forward under tensor parallelism: collectives and the copies before."""
MOE_KERNELS = 30
"""More of them in a layer with experts: router, permutation, dispatch, combine."""
GRAPH_KERNELS = 1
"""What issuing a captured graph takes of the CPU, as if it were so many kernels."""
UNFUSED_KERNELS = 12
"""More of them without fused bias, dropout and activation."""
BACKWARD_FLASH = 2.5
"""Products of a flash-attention backward over a forward's: 5 for 2 (arXiv:2307.08691, 3.1)."""
BACKWARD_FLASH_SLOWDOWN = 1.18
"""Of backward FLOP/s: A100 1.17 with 32 and 64 heads, B200 1.2 with 64 and 128 (SimuMax)."""
WIDE_HEAD = 128
WIDE_HEAD_SLOWDOWN, WIDE_HEAD_BACKWARD_SLOWDOWN = 1.1, 1.25
"""Of heads wider than that, of which fewer rows fit into a tile: latent attention's 192 over 128
values, forward 1.1 and backward 1.25 on A100, 1.1 and 1.28 on B200 (SimuMax's tables of attention).
"""

FLASH_SPEED = {"flash-1": 0.6, "flash": 1.0, "flash-3": 1.35}
"""Speed of kernels over FlashAttention-2: the first is 1.7 to 3 times slower (arXiv:2307.08691,
figures 4 to 7), the third and cuDNN's 1.5 to 2 times faster in the forward on Hopper
(arXiv:2407.08608, figure 5).
"""
PERMUTED_AGAIN = 2
"""Times that a permutation goes over the sorted tokens after it wrote them: row maps and
probabilities (Transformer Engine's kernels as SimuMax counts them, test_ce_permute_efficiency.py).
"""
PERMUTATION_SLOWDOWN = 1.35
"""Over plain kernels: Transformer Engine's permutation reaches 0.54 of B200's memory rate (SimuMax
configs/system/b200_bf16_ceperm.json, permute_fwd and permute_bwd), plain ones 0.72."""
FUSED_LOSS_BYTES = 10.0
"""For each logit, forward or backward, at the rate of plain kernels: Transformer Engine's fused
cross-entropy moves 4 at 0.30 of B200's memory rate (the same file, ce_fusion).
"""
FUSED_BACKWARD, WRITTEN_BACKWARD = 1.5, 1.7
"""Bytes that the backward of what is elementwise moves over its forward's; counted the second."""
WRITTEN_RMS_NORM, WRITTEN_RESIDUAL, WRITTEN_ROTARY, WRITTEN_GATED, WRITTEN_GELU = 36, 6, 21, 10, 32
"""Bytes that PyTorch's own operations move in a forward: of a value of the hidden state, of the
queries and keys, and of the activation (gated, or GPT-2's).
"""
LOW_PRECISION = ("fp8", "fp4")
FP8_CAST_BYTES = 4.0
"""For each value of an operand: bf16 read, fp8 written plain and transposed for the backward."""

GROUPED_WEIGHT_SLOWDOWN = 1.25
"""Of the weight gradients of several experts in one kernel over single products of their size: A100
1.1 to 1.2, B200 1.1 to 1.5 with aligned rows (SimuMax's tables of grouped products,
op_efficiency_simumax.csv).
"""
FEW_ROWS, FEW_ROWS_SLOWDOWN = 512, 2.5
"""Tokens of an expert, when they are few and no multiple of 8, make the weight gradient so much
slower: B200, 154 rows 3.6 times, 308 rows 1.7 times slower than aligned ones of their size
(SimuMax's table of grouped products).
"""

VOCABULARY_MULTIPLE = 128
"""A rank's vocabulary is padded to it (Megatron-LM, ``--make-vocab-size-divisible-by``)."""


@dataclass(frozen=True, slots=True)
class LayerTime:
    """GPU seconds of one layer (or of the head) for one micro-batch, and the CPU's to issue it."""

    forward: Floats
    backward: Floats
    weight_gradient: Floats
    """The part of ``backward`` that nothing waits for: what a zero-bubble schedule moves."""
    attention_core: Floats
    """The part of ``forward`` that is neither products with weights nor what is elementwise."""
    selective: Floats
    """The part of ``forward`` that selective recomputation repeats."""
    host_forward: Floats
    host_backward: Floats


def layer(job: Job, device: Device, layouts: Layouts, moe: bool) -> LayerTime:
    """A dense layer, or one with experts."""
    tokens = layouts.micro_batch * job.seq / layouts.cp
    forward = data = weight = 0.0 * tokens
    for product in products(job.model, moe):
        f, d, w = _product(job, device, layouts, product, tokens)
        forward, data, weight = forward + f, data + d, weight + w
    core, core_backward = attention(job, device, layouts, tokens)
    rate = device.bytes_per_s * device.efficiency.memory_share
    moved = _elementwise_bytes(job, layouts, tokens, moe) / rate
    adapted, adapted_backward = (tokens * size / layouts.tp for size in adapter_bytes(job, moe))
    unpacked = dequantised_bytes(job, moe) / layouts.tp
    backward_moves = WRITTEN_BACKWARD if _is_written_out(job) else FUSED_BACKWARD
    host = _host_seconds(job, layouts, moe)
    trained = job.trainable_share if job.trainable_share < 1 else 1.0
    forward = forward + core + moved + (adapted + unpacked) / rate
    return LayerTime(
        forward=forward,
        backward=data
        + trained * weight
        + core_backward
        + backward_moves * moved
        + (adapted_backward + unpacked) / rate,
        weight_gradient=trained * weight,
        attention_core=core,
        selective=_selective(job, device, layouts, forward=forward, core=core),
        host_forward=host,
        host_backward=2 * host,
    )


def _selective(
    job: Job, device: Device, layouts: Layouts, *, forward: Floats, core: Floats
) -> Floats:
    """Seconds that selective recomputation repeats: of what the memory estimate frees
    (``vram/formula/activations.selective``, ``vram/formula/discarded``).
    """
    if job.habits.attention == "eager":
        return core
    if not gives_up_outputs(job.recipe, job.model):
        return 0.5 * (forward - core)
    tokens = layouts.micro_batch * job.seq / layouts.cp
    rate = device.bytes_per_s * device.efficiency.memory_share
    remade = _remade_bytes(job, layouts, tokens) / rate
    latent = {job.model.mla_q_rank, job.model.mla_kv_rank} - {0}
    for product in products(job.model, False):
        if product.inputs in latent:
            remade = remade + _product(job, device, layouts, product, tokens)[0]
    return remade


def head(job: Job, device: Device, layouts: Layouts) -> LayerTime:
    """Embedding, last norm, logits and the loss."""
    tokens = layouts.micro_batch * job.seq / layouts.cp
    padded = VOCABULARY_MULTIPLE * np.ceil(job.model.vocab / (VOCABULARY_MULTIPLE * layouts.tp))
    wide = job.but(dtype=attention_dtype(job))
    forward, data, weight = _three(
        wide, device, tokens, inputs=job.model.hidden + 0.0 * tokens, outputs=padded, batch=1.0
    )
    rate = device.bytes_per_s * device.efficiency.memory_share
    logits = tokens * padded
    extra = 1.0 if job.habits.fused_elementwise else 2.0
    loss = logits * (FUSED_LOSS_BYTES if job.habits.fused_loss else 16 * extra) / rate
    loss_backward = logits * (FUSED_LOSS_BYTES if job.habits.fused_loss else 10 * extra) / rate
    embedding = 8 * tokens * job.model.hidden / rate
    host = _host_seconds(job, layouts, False)
    return LayerTime(
        forward=forward + loss + embedding,
        backward=data + job.trainable_share * weight + loss_backward + 2 * embedding,
        weight_gradient=job.trainable_share * weight,
        attention_core=0.0 * tokens,
        selective=0.0 * tokens,
        host_forward=host,
        host_backward=host,
    )


def attention(job: Job, device: Device, layouts: Layouts, tokens: Floats) -> tuple[Floats, Floats]:
    """Forward and backward of the attention core: flash (causal half), or scores in memory."""
    width, value_width = attention_dims(job.model)
    heads = np.maximum(job.model.heads / layouts.tp, 1.0)
    dtype = attention_dtype(job)
    peak = device.flops(dtype)
    products_flops = 2 * tokens * job.seq * heads * (width + value_width)
    if job.habits.attention != "eager":
        blocks = heads * tokens / 128 / device.multiprocessors
        fill = (blocks / np.ceil(blocks)) ** gemm.WAVE_POWER
        share = device.flash_share * min(width / 128, 1.0) ** 0.25 * fill
        seconds = 0.5 * products_flops / (peak * share * FLASH_SPEED[job.habits.attention])
        if width > WIDE_HEAD:
            slower, slower_backward = (WIDE_HEAD_SLOWDOWN, WIDE_HEAD_BACKWARD_SLOWDOWN)
        else:
            slower, slower_backward = (1.0, 1.0)
        return (
            slower * seconds,
            BACKWARD_FLASH * BACKWARD_FLASH_SLOWDOWN * slower_backward * seconds,
        )
    scores = tokens * job.seq * heads
    rate = device.bytes_per_s * device.efficiency.memory_share
    speed = peak * device.matmul_share(dtype) * gemm.aligned(width, value_width)
    forward = np.maximum(products_flops / speed, 4 * scores / rate) + 9 * scores / rate
    backward = np.maximum(2 * products_flops / speed, 8 * scores / rate) + 11 * scores / rate
    return forward, backward


def attention_dtype(job: Job) -> str:
    """Where fp8 recipes stay in 16 bits: attention and head (Transformer Engine's defaults)."""
    return "bf16" if job.dtype in LOW_PRECISION else job.dtype


def _product(
    job: Job, device: Device, layouts: Layouts, product: Product, tokens: Floats
) -> tuple[Floats, Floats, Floats]:
    """Forward, gradient of the input, gradient of the weight."""
    inputs, outputs = product.per_rank(layouts.tp)
    rows, batch = tokens, 1.0 + 0 * tokens
    if product.part == "experts":
        inputs, outputs = product.per_rank(layouts.expert_tp)
        batch = np.maximum(product.copies / layouts.ep, 1.0)
        mean = (
            tokens * job.model.top_k * job.expert_imbalance / batch * layouts.expert_tp / layouts.tp
        )
        # the mean of many counts, of which some are aligned and some are not
        rows = 8 * np.ceil(mean / 8)
        forward, data, weight = _three(
            job, device, rows, inputs=inputs, outputs=outputs, batch=batch
        )
        weight = weight * np.where(batch > 1, GROUPED_WEIGHT_SLOWDOWN, 1.0)
        return (
            forward,
            data,
            weight * np.where((mean < FEW_ROWS) & (mean % 8 != 0), FEW_ROWS_SLOWDOWN, 1.0),
        )
    return _three(job, device, rows, inputs=inputs, outputs=outputs, batch=batch)


def _three(
    job: Job,
    device: Device,
    rows: Floats,
    *,
    inputs: Floats,
    outputs: Floats,
    batch: Floats | float,
) -> tuple[Floats, Floats, Floats]:
    """The forward product and the two of the backward."""
    casts = (
        FP8_CAST_BYTES
        * (job.dtype in LOW_PRECISION)
        / (device.bytes_per_s * device.efficiency.memory_share)
    )
    forward = (
        gemm.seconds(device, rows, inputs, outputs, job.dtype, batch=batch)
        + casts * batch * rows * inputs
    )
    data = gemm.seconds(device, rows, outputs, inputs, job.dtype, batch=batch)
    fused = job.habits.fused_accumulation
    written = 2.0 * job.habits.gradient_bytes if fused else 2.0
    weight = (
        gemm.seconds(device, inputs, rows, outputs, job.dtype, batch=batch, output_bytes=written)
        + casts * batch * rows * outputs
    )
    if not fused:
        added = batch * inputs * outputs * (2.0 + 2.0 * job.habits.gradient_bytes)
        weight = weight + added / (device.bytes_per_s * device.efficiency.memory_share)
    return forward, data, weight


def _is_written_out(job: Job) -> bool:
    return job.habits.written_out and not job.habits.fused_elementwise


def _elementwise_bytes(job: Job, layouts: Layouts, tokens: Floats, moe: bool) -> Floats:
    """Memory traffic of a layer's forward besides its products: norms, residuals, rotary,
    activation.

    Per token: a norm reads and writes (4 bytes a value), a residual with dropout reads two, writes
    one and a mask (7).
    """
    if _is_written_out(job):
        return _written_out_bytes(job, layouts, tokens, moe)
    model = job.model
    extra = 1.0 if job.habits.fused_elementwise else 2.0
    rows = tokens / np.where(layouts.sequence_parallel, layouts.tp, 1)
    activation_bytes = (8 + 14 * extra) * rows * model.hidden
    width, _ = attention_dims(model)
    rotary = 8 * extra * tokens * model.heads * width / layouts.tp
    ffn = _activation_width(job, moe)
    activation = extra * _activated_bytes(model, tokens * ffn / layouts.tp)
    return activation_bytes + rotary + activation + _permutation_bytes(job, layouts, tokens) * moe


def _remade_bytes(job: Job, layouts: Layouts, tokens: Floats) -> Floats:
    """Memory traffic of a norm and of the routed experts' activation, made once more."""
    model = job.model
    rows = tokens / np.where(layouts.sequence_parallel, layouts.tp, 1)
    routed = model.top_k * (model.moe_ffn or model.ffn) * job.expert_imbalance
    return 4 * rows * model.hidden + _activated_bytes(model, tokens * routed / layouts.tp)


def _activated_bytes(model: ModelShape, values: Floats) -> Floats:
    """Of an activation in one kernel: it reads one value, or a gate's two, and writes one."""
    return (6 if model.gated_mlp else 4) * values


def _written_out_bytes(job: Job, layouts: Layouts, tokens: Floats, moe: bool) -> Floats:
    """The same of PyTorch's own operations, one kernel each, counted in layers of Transformers 5.24
    (what non-matrix operations read and write): an RMSNorm casts, squares, takes the mean, scales
    twice and casts back; the rotary embedding multiplies, turns, joins and adds.
    """
    model = job.model
    family = traits(model.family)
    rows = tokens / np.where(layouts.sequence_parallel, layouts.tp, 1)
    norm_bytes = WRITTEN_RMS_NORM if family.norm == "rms" else 4.0
    width, _ = attention_dims(model)
    rotated = 0 if family.learned_positions else model.heads + (model.kv_heads or model.heads)
    activation = _activation_width(job, moe) / layouts.tp
    if model.gated_mlp:
        activation_bytes = WRITTEN_GATED * activation
    else:
        activation_bytes = (WRITTEN_GELU if model.family in EAGER_GELU else 4.0) * activation
    return (
        (2 * norm_bytes + 2 * WRITTEN_RESIDUAL) * rows * model.hidden
        + (WRITTEN_ROTARY * rotated * width / layouts.tp + activation_bytes) * tokens
        + _permutation_bytes(job, layouts, tokens) * moe
    )


def _activation_width(job: Job, moe: bool) -> int:
    model = job.model
    if moe:
        return model.top_k * (model.moe_ffn or model.ffn) + model.shared_ffn
    return model.ffn


def _permutation_bytes(job: Job, layouts: Layouts, tokens: Floats) -> Floats:
    """Of sorting tokens by expert and back, at the rate of plain kernels: a token's value read once
    and written ``top_k`` times, and the reverse; with several experts on a rank, what other ranks
    sent is sorted too, both ways, unless the dispatcher sends tokens unsorted (DeepEP). Of
    tensor-parallel ranks each sorts its part of the sequence.
    """
    model = job.model
    own_tokens = tokens / layouts.tp * layouts.expert_tp
    sent = 2.0 * model.top_k * job.expert_imbalance
    ends = 2 * (2.0 + sent + PERMUTED_AGAIN * sent)
    by_rank = (layouts.ep > 1) & (model.experts > layouts.ep) & (job.habits.dispatcher != "deepep")
    chunks = np.where(by_rank, 4 * sent, 0.0)
    return (ends + chunks) * own_tokens * model.hidden * PERMUTATION_SLOWDOWN


def _host_seconds(job: Job, layouts: Layouts, moe: bool) -> Floats:
    graphs = job.habits.cuda_graphs
    dense = FORWARD_KERNELS + UNFUSED_KERNELS * (not job.habits.fused_elementwise)
    eager = dense + COLLECTIVE_KERNELS * (layouts.tp > 1)
    kernels = (GRAPH_KERNELS if graphs else eager) + MOE_KERNELS * moe * (graphs != "full")
    return kernels * job.habits.host_us_per_kernel / 1e6 + 0.0 * layouts.tp
