"""Logits and cross-entropy, in bytes of one token of the rank that computes the loss.

Read off traces: an fp32 cross-entropy of PyTorch holds its log softmax, the gradient of the
negative log likelihood and that of the log softmax at once, each 4 bytes an entry of the
vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

from gputop_analysis.catalog.families import traits
from gputop_analysis.vram.formula.activations import capped, trains_base
from gputop_analysis.vram.formula.dims import Dims, Number
from gputop_analysis.vram.formula.elementwise import least, true
from gputop_analysis.vram.formula.habits import Habits
from gputop_analysis.vram.formula.releases import release
from gputop_analysis.vram.setup import TRANSFORMERS_CODE

CHUNKS = 8
"""Pieces of a chunked loss (torchtune's default). A piece's logits go when its gradient comes; its
log softmax waits for the backward pass unless it is compiled, and made again.
"""
FUSED_ROWS = 8
"""Bytes of a token and hidden channel in a fused linear cross-entropy: it takes as many rows at a
time as make their logits no larger than the hidden states (in both types), and makes the gradient
of all rows in the forward pass.
"""
FP32_COPIES = 12.0
"""Of a vocabulary entry: log softmax, the likelihood's gradient, the log softmax's."""
AUTOCAST_SOFTMAX = 4.0
"""Of a log softmax that autocast asks for in fp32: its kernel reads the 16-bit logits and gives
their gradient back in 16 bits (``half_to_float`` in PyTorch's ``ATen/native/cuda/SoftMax.cu``), so
that two copies are in fp32, it and the likelihood's gradient.
"""
LOSS_PARALLEL = 4.0
"""The same, where the vocabulary is spread over ranks: one more fp32 copy, of the exponentials
(``_log_softmax`` and ``_nll_loss_and_log_softmax_backward`` in PyTorch's
``distributed/tensor/parallel/loss.py``).
"""
NANOTRON_LOSS = 12.0, 10.0
"""fp32 logits, less their maximum, and their exponentials; then the softmax, and its gradient in
the logits' type (``_ShardedCrossEntropy`` in nanotron's
``parallel/tensor_parallel/functional.py``).
"""
LITGPT_PIECE = 128
"""Tokens of a row whose logits litgpt makes at a time where adapters are trained
(``lm_head_chunk_size`` of its ``finetune/lora.py``).
"""
LITGPT_LOGITS = 4.0
"""Bytes of a token and entry of the vocabulary: Fabric turns what a model gives back to fp32
(``convert_output`` of ``lightning/fabric/plugins/precision/half.py``), and litgpt's loop holds it
until the next step's is there.
"""
FREED_LOGITS, SHIFTED_LABELS = (4, 46), (4, 50)
"""Transformers: until the first, fp32 logits replaced the 16-bit ones; until the second, logits
were shifted by a copy.
"""

LEFT_IN_16_BITS = ("bloom", "falcon", "gpt2", "gpt_bigcode", "gpt_neox", "mpt", "opt", "stablelm")
"""Families whose loss took the logits as they were until ``SHIFTED_LABELS`` (Transformers 4.45 and
4.48, ``modeling_FAMILY.py``); others turned them to fp32.
"""
REMOTE_IN_16_BITS = ("qwen",)
"""Families outside of Transformers whose own code takes the logits as they are
(``QWenLMHeadModel.forward`` in ``modeling_qwen.py`` of the model's repository).
"""


@dataclass(frozen=True, slots=True)
class LossBytes:
    """Bytes of one token at the worst moment of both passes."""

    forward: Number
    backward: Number
    cached: Number
    """In segments that the loss has to itself from one step to the next."""


def loss(d: Dims, habits: Habits) -> LossBytes:
    """Of logits and loss; nothing where the logits are never whole."""
    entries = _entries(d)
    if d.setup.loss == "fused":
        rows = FUSED_ROWS * d.model.hidden + 0 * entries
        return LossBytes(rows, 0 * entries, rows)
    forward, backward = _of_entry(d)
    if d.recipe == "litgpt":
        return _litgpt(d, entries)
    if d.setup.loss == "chunked":
        logits_bytes, piece = d.compute, 4.0 if d.setup.compile else backward
        saved = 0.0 if d.setup.compile else logits_bytes
        forward, backward = logits_bytes + forward / CHUNKS, logits_bytes + saved + piece / CHUNKS
        return LossBytes(entries * forward, entries * backward, entries * backward)
    return LossBytes(entries * forward, entries * backward, entries * _cached(d, backward))


def _entries(d: Dims) -> Number:
    """Of the vocabulary that a rank has logits of: all of them where those of tensor-parallel ranks
    are gathered for the loss, as Transformers does (``_tp_plan`` of its ``modeling_llama.py``) and
    PyTorch's tutorial of tensor parallelism (``ColwiseParallel(output_layouts=Replicate())``).
    """
    if d.recipe in (*TRANSFORMERS_CODE, "plain"):
        return d.model.vocab + 0 * d.tp
    return d.model.vocab / d.tp


def _litgpt(d: Dims, entries: Number) -> LossBytes:
    """Of whole logits in fp32, those of the last step beside them until they are made; their log
    softmax, and its gradient piece by piece, or at once.
    """
    converted = 2 * LITGPT_LOGITS + d.compute * (d.compute < 4)
    if d.setup.loss == "chunked":
        piece = least(LITGPT_PIECE / d.seq, 1)
    else:
        piece = 1
    backward = LITGPT_LOGITS + 4 + 8 * piece
    return LossBytes(entries * converted, entries * backward, entries * backward)


def quantized_head(d: Dims) -> tuple[Number, Number]:
    """Bytes of the head's product in the forward and in the backward pass, with whatever logits
    there are by then, where Fabric quantises it like every linear layer: its weight in fp16, in
    which that is dequantised, and in the computation's type (``_Linear4bit`` of
    ``lightning/fabric/plugins/precision/bitsandbytes.py``).
    """
    if d.recipe != "litgpt" or d.setup.quantized != "nf4":
        return 0.0 * d.tokens, 0.0 * d.tokens
    entries = d.model.vocab / d.tp
    logits = d.tokens * entries * (LITGPT_LOGITS + d.compute)
    weight = (2 + d.compute) * entries * d.model.hidden
    return (logits + weight) * d.last, (logits + weight) * d.last


def _cached(d: Dims, backward: Number) -> Number:
    """Of a token and entry of the vocabulary, in segments that the loss has to itself from step to
    step: what it holds in the backward pass, and the 16-bit logits of the forward pass, in whose
    block no fp32 copy fits. foak's, as its runs have it, as much as PyTorch's.
    """
    halves = d.compute * (d.compute < 4)
    if d.setup.kernels and not d.setup.gated_kernel:
        return FP32_COPIES + halves
    eager = d.recipe in (*TRANSFORMERS_CODE, "torchtitan") and not d.setup.kernels
    return backward + halves * eager


def head_buffers(d: Dims) -> Number:
    """Of a fused linear cross-entropy whose head is trained: the head's gradient, made in the
    forward pass, and the product of one piece that is added to it (Hsu et al. 2024, Liger Kernel,
    section 3).
    """
    if d.setup.loss != "fused" or not trains_base(d):
        return 0
    return 2 * d.compute * d.model.vocab * d.model.hidden / d.tp


def _of_entry(d: Dims) -> tuple[Number, Number]:
    """Bytes of a token and entry of the vocabulary, forward and backward."""
    a = d.compute
    if d.recipe == "megatron":
        entry_bytes = (8 if d.setup.kernels else 4) + a
        return entry_bytes, entry_bytes
    if d.recipe in TRANSFORMERS_CODE:
        return _of_encoder(d) if traits(d.model.family).encoder else _of_transformers(d)
    if d.recipe == "nanotron":
        return NANOTRON_LOSS
    if d.recipe == "torchtitan":
        return _of_torchtitan(d)
    if _is_raised(d):
        return a + AUTOCAST_SOFTMAX, 2 * a + 2 * AUTOCAST_SOFTMAX
    return 2 * a, 4 * a


def _is_raised(d: Dims) -> bool:
    """Whether autocast raises a softmax over 16-bit logits to fp32."""
    return d.compute < 4 and (d.setup.autocast or d.setup.weights == "fp32")


def _half(d: Dims) -> Number:
    """Bytes of the logits in 16 bits; 0 where all is computed in fp32."""
    return d.compute if d.compute < 4 else 0


def _of_encoder(d: Dims) -> tuple[Number, Number]:
    """Encoders leave their logits in the type of the products (``BertForMaskedLM``), which
    autocast's softmax raises.
    """
    if _is_raised(d):
        return d.compute + 8, FP32_COPIES
    return 2 * d.compute, 3 * d.compute


def _of_transformers(d: Dims) -> tuple[Number, Number]:
    """What a causal model's loss in Transformers holds, by release."""
    version = release(d.setup.transformers)
    in_library = version < SHIFTED_LABELS and d.model.family in LEFT_IN_16_BITS
    if in_library or d.model.family in REMOTE_IN_16_BITS:
        return _as_they_are(d)
    shifted = 4 if version < SHIFTED_LABELS else 0
    logits = 0 if version < FREED_LOGITS else _half(d)
    if d.setup.kernels:
        entry_bytes = logits + 4 + shifted
        return entry_bytes, entry_bytes
    squeezed = d.compute if capped(d) else 0
    return logits + 8 + shifted + squeezed, 12.0 + squeezed


def _of_torchtitan(d: Dims) -> tuple[Number, Number]:
    if d.setup.kernels:
        return _half(d), 2 * d.compute
    parallel = LOSS_PARALLEL * true(d.tp > 1)
    return _half(d) + 8 + parallel, FP32_COPIES + parallel


def _as_they_are(d: Dims) -> tuple[Number, Number]:
    """Of a loss on logits that stay in the computation's type: they, their shifted copy, and what a
    kernel or PyTorch makes of that, which autocast raises to fp32.
    """
    a = d.compute
    if d.setup.kernels:
        return 2 * a, 2 * a
    if not d.setup.autocast:
        return 3 * a, 3 * a
    return 2 * a + 8, FP32_COPIES


def final_norm(d: Dims, habits: Habits) -> Number:
    """The last norm of the model with its output, as the loss finds them."""
    if habits.eager_norm and habits.residual < 4:
        fp32 = 4
    else:
        fp32 = habits.residual
    trained = 2 * d.compute if trains_base(d) else 0
    return d.model.hidden * (fp32 + trained) / d.outer_tp
