"""Gradients that Megatron-LM hands to autograd and nothing reads."""

from __future__ import annotations

from gputop_analysis.catalog.params import linears, moe_layers
from gputop_analysis.vram.formula.activations import trains_base
from gputop_analysis.vram.formula.dims import Dims, Number
from gputop_analysis.vram.formula.releases import release

REUSED_SINCE = (2, 3)
"""Transformer Engine from which on one such tensor of each shape stays for good; before, each went
with its layer.
"""


def unread_gradients(d: Dims) -> Number:
    """Bytes of the empty 16-bit tensors, one of each shape of a weight, that stand for gradients
    which the product's kernel has added to the fp32 ones itself (``get_dummy_wgrad`` of
    ``transformer_engine/pytorch/module/base.py``, used by ``tensor_parallel/layers.py`` of
    Megatron-Core, too).
    """
    setup, shape = d.setup, d.model
    reuses = release(setup.transformer_engine) >= REUSED_SINCE
    holds_whole_weights = setup.parallel.stage < 2
    if setup.recipe != "megatron" or not (reuses and holds_whole_weights and trains_base(d)):
        return 0.0
    routed = moe_layers(shape)
    kinds = [False] * (routed < shape.layers) + [True] * (routed > 0)
    values = {
        (linear.part, linear.name): linear.inputs * linear.outputs / _split(d, linear.part)
        for moe in kinds
        for linear in linears(shape, moe)
    }
    head = shape.vocab * shape.hidden / d.tp * d.last
    return 2 * (sum(values.values()) + head)


def _split(d: Dims, part: str) -> Number:
    return d.expert_tp if part == "experts" else d.tp
