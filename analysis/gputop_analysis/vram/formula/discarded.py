"""What Megatron-Core's selective recomputation gives up of a layer with experts.

Outputs are discarded once the next operation has taken them, and made again in the backward pass:
of norms that no product's kernel includes (``layernorm``), of the routed experts' activation
(``moe_act``), and queries, keys and values that latent attention projects up (``mla_up_proj``).
megatron-core 0.15, ``transformer/transformer_config.py`` (``recompute_modules``) and
``tensor_parallel/random.py`` (``CheckpointWithoutOutput``). A model without experts recomputes its
MLPs (``mlp``), which frees at least what ``activations.selective`` says.
"""

from __future__ import annotations

from gputop_analysis.vram.formula import activations
from gputop_analysis.vram.formula.dims import Dims, Number
from gputop_analysis.vram.formula.habits import Habits
from gputop_analysis.vram.setup import ModelShape


def modules_of(model: ModelShape | None) -> tuple[str, ...]:
    """What ``--recompute-modules`` is given. Not ``core_attn``, Megatron-Core's default, which
    frees next to nothing with flash attention.
    """
    if model is None or not model.experts:
        return ("layernorm", "mlp")
    return ("layernorm", "moe_act", *(("mla_up_proj",) if model.mla_kv_rank else ()))


def gives_up_outputs(recipe: str, model: ModelShape) -> bool:
    """Whether that is what selective recomputation means, where attention keeps no scores."""
    return recipe == "megatron" and bool(model.experts)


def is_by_output(d: Dims) -> bool:
    """Whether a setup recomputes so."""
    is_selective = d.setup.checkpointing == "selective" and d.setup.attention != "eager"
    return is_selective and gives_up_outputs(d.recipe, d.model)


def discarded(d: Dims, habits: Habits, moe: bool) -> Number:
    """Bytes of one layer and one token of this rank."""
    if not activations.keeps_inputs(d):
        return 0
    model, linear_input = d.model, habits.linear_input or d.compute
    norms = moe + bool(model.mla_kv_rank)
    outputs = linear_input * norms * model.hidden / d.outer_tp
    if moe:
        outputs = outputs + linear_input * model.top_k * (model.moe_ffn or model.ffn) / d.tp
    if model.mla_kv_rank:
        outputs = outputs + d.compute * sum(activations.widths(d)) / d.tp
    return outputs
