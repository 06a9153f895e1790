"""On which layers LoRA adapters sit, and how many parameters they have."""

from __future__ import annotations

from collections.abc import Iterable

from gputop_analysis.catalog.params import Linear, is_moe, linears, moe_layers
from gputop_analysis.vram.setup import Lora, ModelShape

FUSED = {
    "q_proj": ("query_key_value", "qkv_proj", "c_attn", "Wqkv", "query", "q", "q_b_proj"),
    "v_proj": ("query_key_value", "qkv_proj", "c_attn", "Wqkv", "value", "v", "kv_b_proj"),
    "k_proj": ("query_key_value", "qkv_proj", "c_attn", "Wqkv", "key", "k", "kv_b_proj"),
    "o_proj": ("dense", "out_proj"),
    "gate_proj": ("gate_up_proj",),
    "up_proj": ("gate_up_proj", "fc1", "c_fc", "dense_h_to_4h"),
    "down_proj": ("fc2", "dense_4h_to_h"),
}
"""What peers call the layers that LoRA's usual targets name."""


def adapters(shape: ModelShape, lora: Lora) -> int:
    """Parameters of all LoRA adapters: ``rank x (inputs + outputs)`` a target (Hu et al. 2021, section 4.1)."""
    moe = moe_layers(shape)
    of_layer = {
        kind: _adapter(linears(shape, kind), lora) for kind in (False, True) if _has(shape, kind)
    }
    return moe * of_layer.get(True, 0) + (shape.layers - moe) * of_layer.get(False, 0)


def _has(shape: ModelShape, moe: bool) -> bool:
    return any(is_moe(shape, layer) == moe for layer in range(shape.layers))


def _adapter(layer: Iterable[Linear], lora: Lora) -> int:
    return sum(
        linear.copies * lora.rank * (linear.inputs + linear.outputs)
        for linear in layer
        if targeted(linear, lora)
    )


def targeted(linear: Linear, lora: Lora) -> bool:
    """Whether an adapter sits on that layer; a fused projection is hit by the name of any of its pieces."""
    names = lora.targets
    if "all-linear" in names:
        return True
    own = linear.name.rsplit(".", 1)[-1]
    return own in names or linear.name in names or any(own in FUSED.get(name, ()) for name in names)
