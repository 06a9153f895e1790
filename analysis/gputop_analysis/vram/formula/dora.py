"""What DoRA (Liu et al. 2024, arXiv 2402.09353) holds beside LoRA, as peft computes it
(``DoraLinearLayer.forward`` of ``tuners/lora/dora.py``, ``DoraLinearVariant`` of ``variants.py``).
"""

from __future__ import annotations

from gputop_analysis.catalog.params import Linear, linears
from gputop_analysis.vram.adapters import names_of, targeted
from gputop_analysis.vram.formula.dims import Dims, Number
from gputop_analysis.vram.formula.habits import Habits


def kept(d: Dims, linear: Linear, value_bytes: float, habits: Habits) -> Number:
    """Bytes of a token that an adapted layer keeps besides: its base's result and the adapter's,
    which the magnitude's gradient needs.

    With dropout peft computes the base's result anew from the dropped input, and that product keeps
    the whole weight where it had to be cast for it.

    Args:
        linear: the adapted layer.
        value_bytes: of a value of the adapter's results.
        habits: of the trainer.
    """
    assert d.setup.lora is not None
    if not d.setup.lora.dropout:
        return linear.outputs * (d.compute + value_bytes)
    cast_weight = 0.0 * d.tokens
    if not value_bytes == habits.adapters == _stored(d, habits):
        cast_weight = value_bytes * linear.inputs * linear.outputs / d.tokens
    return linear.outputs * 2 * value_bytes + cast_weight


def _stored(d: Dims, habits: Habits) -> float:
    """Bytes of a value of the base's weight, of a quantised one below any type's."""
    return 1.0 if d.setup.quantized else habits.weights


def temporaries(d: Dims, habits: Habits) -> Number:
    """Bytes that the norm of the largest adapted weight takes while it is computed: a unit matrix
    that goes through the adapter for its product, that product, scaled and added to the weight,
    which is cast where it has another type.
    """
    lora = d.setup.lora
    if lora is None or not lora.dora:
        return 0.0
    value_bytes = d.compute if d.setup.autocast else habits.adapters
    copies = 3 + (_stored(d, habits) != value_bytes)
    layer = linears(d.model, moe=False)
    peers = names_of(layer)
    sizes = [
        habits.adapters * linear.inputs**2 + copies * value_bytes * linear.inputs * linear.outputs
        for linear in layer
        if targeted(linear, lora, peers)
    ]
    return max(sizes, default=0.0) / d.tp
