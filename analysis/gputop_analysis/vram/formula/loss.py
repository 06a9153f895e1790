"""Logits and cross-entropy, in bytes of one micro-batch on the rank that computes the loss."""

from __future__ import annotations

from gputop_analysis.vram.formula.dims import Dims, Number
from gputop_analysis.vram.formula.habits import Habits

CHUNKS = 8
"""Pieces of a chunked loss (torchtune's default)."""


def loss_peak(d: Dims, kept: Habits) -> Number:
    """Most of what logits and loss hold at a time; 0 on the other pipeline stages.

    In 32 bits a token and vocabulary entry costs 12 bytes in the backward pass of the cross-entropy (the logits, their log
    softmax, its gradient) and the logits of the computation's type besides.
    """
    entries = d.tokens * d.model.vocab / d.tp * d.last
    if d.setup.loss == "fused":
        return 0 * entries
    if d.recipe == "megatron":
        return entries * (4 + 2 * d.compute)
    a = d.compute
    whole = entries * ((a if a < 4 else 0) + 12 if kept.upcast_logits else 3 * a)
    if d.setup.loss == "chunked":
        return entries * 2 * a + whole / CHUNKS
    return whole


def hidden_at_loss(d: Dims, kept: Habits) -> Number:
    """The last layer's output and its norm."""
    return d.tokens * d.model.hidden * (4 + 2 * kept.residual) / d.outer_tp * d.last
