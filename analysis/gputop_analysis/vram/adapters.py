"""On which layers LoRA adapters sit, and how many parameters they have."""

from __future__ import annotations

from collections.abc import Iterable

from gputop_analysis.catalog.params import Linear, is_moe, linears, moe_layers
from gputop_analysis.vram.setup import Lora, ModelShape

_QKV = ("q", "k", "v", "qkv", "kv")
_UP = ("gate", "up", "gate_up")
ROLES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("q_proj", "query", "q_lin", "wq", "q_b_proj"), ("q", "qkv")),
    **dict.fromkeys(("k_proj", "key", "k_lin", "wk"), ("k", "qkv", "kv")),
    **dict.fromkeys(("v_proj", "value", "v_lin", "wv", "kv_b_proj"), ("v", "qkv", "kv")),
    **dict.fromkeys(("query_key_value", "qkv_proj", "c_attn", "Wqkv", "W_pack", "wqkv"), _QKV),
    **dict.fromkeys(("o_proj", "out_proj", "dense", "wo", "out_lin"), ("out",)),
    **dict.fromkeys(("gate_proj", "w1", "wi_0"), ("gate", "gate_up")),
    **dict.fromkeys(("up_proj", "w3", "wi_1"), ("up", "gate_up")),
    **dict.fromkeys(("gate_up_proj", "dense_h_to_4h", "c_fc", "fc1", "fc_in", "lin1"), _UP),
    **dict.fromkeys(("down_proj", "dense_4h_to_h", "fc2", "fc_out", "lin2", "w2"), ("down",)),
    "c_proj": ("out", "down"),
}
"""Linear layers and their roles in other families: a script is run on several of them."""


def adapters(shape: ModelShape, lora: Lora) -> int:
    """Parameters of all LoRA adapters: ``rank x (inputs + outputs)`` a target (Hu et al. 2021), and
    a magnitude an output with DoRA.
    """
    moe = moe_layers(shape)
    of_layer = {
        is_moe: _adapter(linears(shape, is_moe), lora)
        for is_moe in (False, True)
        if _has(shape, is_moe)
    }
    return moe * of_layer.get(True, 0) + (shape.layers - moe) * of_layer.get(False, 0)


def _has(shape: ModelShape, moe: bool) -> bool:
    return any(is_moe(shape, layer) == moe for layer in range(shape.layers))


def _adapter(layer: Iterable[Linear], lora: Lora) -> int:
    layer = tuple(layer)
    peers = names_of(layer)
    return sum(
        linear.copies * (lora.rank * (linear.inputs + linear.outputs) + lora.dora * linear.outputs)
        for linear in layer
        if targeted(linear, lora, peers)
    )


def names_of(layer: Iterable[Linear]) -> frozenset[str]:
    """What the linear layers are called, without what they are in."""
    return frozenset(linear.name.rsplit(".", 1)[-1] for linear in layer)


def targeted(linear: Linear, lora: Lora, peers: frozenset[str] = frozenset()) -> bool:
    """Whether an adapter sits on that layer.

    A fused projection is hit by the name of any of its pieces, and a name of another family by the
    layer of its role; one of ``peers``, the names of the same transformer layer, means that layer
    only.
    """
    names = lora.targets
    if "all-linear" in names:
        return True
    last_part = linear.name.rsplit(".", 1)[-1]
    if last_part in names or linear.name in names:
        return True
    return any(linear.role in ROLES.get(name, ()) for name in names if name not in peers)
