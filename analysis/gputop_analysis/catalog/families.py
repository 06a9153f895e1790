"""What the families of transformers do differently where a configuration's dimensions do not say
it.

Read from the modules ``transformers/models/FAMILY/modeling_FAMILY.py`` of Hugging Face Transformers
5.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Traits:
    """Biases, norms, position tables and the names of the linear layers of one family."""

    qkv: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
    """One name: a fused projection."""
    out: str = "o_proj"
    gate: tuple[str, ...] = ("gate_proj", "up_proj")
    """Of a gated MLP; one name: a fused projection."""
    up: str = "up_proj"
    """Of an MLP that is not gated."""
    down: str = "down_proj"
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False
    norm: str = "rms"
    """``rms``: a weight; ``layer``: a weight and a bias; ``layer-weight``: without bias; ``none``:
    no parameters.
    """
    norms_per_layer: int = 2
    qk_norm: str = ""
    """``head``: one weight of a head's width for queries, one for keys; ``all``: over all heads."""
    embedding_norm: bool = False
    final_norm: bool = True
    learned_positions: bool = False
    position_offset: int = 0
    """Rows of the position table beyond the longest sequence."""
    sinks: bool = False
    """A learned attention sink for each head."""
    router_bias: bool = False
    expert_bias: bool = False
    shared_gate: bool = False
    always_shared: bool = False
    """One shared expert as wide as a routed one, whatever the configuration counts."""
    encoder: bool = False
    """Bidirectional, without a language-model head that shifts labels."""
    encoder_decoder: bool = False


_GPT_MLP = {"mlp_bias": True, "norm": "layer", "qkv_bias": True, "out_bias": True}
_NEOX = Traits(
    qkv=("query_key_value",), out="dense", up="dense_h_to_4h", down="dense_4h_to_h", **_GPT_MLP
)
_QWEN2 = Traits(qkv_bias=True)
_QWEN3 = Traits(qk_norm="head")
_GEMMA2 = Traits(norms_per_layer=4)
_GEMMA3 = Traits(norms_per_layer=4, qk_norm="head")
_BERT = Traits(
    qkv=("query", "key", "value"),
    out="dense",
    up="intermediate.dense",
    down="output.dense",
    learned_positions=True,
    embedding_norm=True,
    final_norm=False,
    encoder=True,
    **_GPT_MLP,
)
_GPT2 = Traits(
    qkv=("c_attn",), out="c_proj", up="c_fc", down="c_proj", learned_positions=True, **_GPT_MLP
)

_LIKE_LLAMA = (
    *("llama", "mistral", "mistral3", "mixtral", "ministral", "ministral3", "granite", "smollm3"),
    *("llava", "llava_next", "pixtral", "idefics2", "idefics3", "smolvlm", "mllama", "emu3"),
    *("deepseek_v2", "deepseek_v3", "kimi_k2", "minicpm", "minicpm3", "youtu", "sarvam_mla"),
    *("arcee", "cwm", "ernie4_5", "exaone", "helium", "hyperclovax", "internlm3", "iquestcoder"),
    *("seed_oss", "solar_open", "vaultgemma"),
)

FAMILIES: dict[str, Traits] = {
    **dict.fromkeys(_LIKE_LLAMA, Traits()),
    "llama4": Traits(always_shared=True),
    "llama4_text": Traits(always_shared=True),
    "qwen2": _QWEN2,
    "qwen2_moe": Traits(qkv_bias=True, shared_gate=True),
    "qwen2_vl": _QWEN2,
    "qwen2_5_vl": _QWEN2,
    "internvl": _QWEN2,
    "mimo": _QWEN2,
    "qwen3": _QWEN3,
    "apertus": _QWEN3,
    "dots1": _QWEN3,
    "exaone4": _QWEN3,
    "hunyuan_v1_dense": _QWEN3,
    "qwen3_moe": _QWEN3,
    "qwen3_vl": _QWEN3,
    "qwen3_vl_moe": _QWEN3,
    "gemma": Traits(),
    "gemma2": _GEMMA2,
    "gemma3": _GEMMA3,
    "gemma3_text": _GEMMA3,
    "phi": Traits(
        out="dense",
        up="fc1",
        down="fc2",
        norms_per_layer=1,
        head_bias=True,
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        norm="layer",
    ),
    "phi3": Traits(qkv=("qkv_proj",), gate=("gate_up_proj",)),
    "gpt2": _GPT2,
    "gpt_bigcode": _GPT2,
    "gpt_neo": Traits(
        out="out_proj",
        up="c_fc",
        down="c_proj",
        out_bias=True,
        mlp_bias=True,
        norm="layer",
        learned_positions=True,
    ),
    "gptj": Traits(
        out="out_proj",
        up="fc_in",
        down="fc_out",
        mlp_bias=True,
        head_bias=True,
        norm="layer",
        norms_per_layer=1,
    ),
    "starcoder2": Traits(up="c_fc", down="c_proj", **_GPT_MLP),
    "nemotron": Traits(norm="layer"),
    "stablelm": Traits(norm="layer"),
    "cohere": Traits(norm="layer-weight", norms_per_layer=1),
    "cohere2": Traits(norm="layer-weight", norms_per_layer=1),
    "granitemoe": Traits(gate=("input_linear",), down="output_linear"),
    "qwen": Traits(qkv=("c_attn",), out="c_proj", gate=("w1", "w2"), down="c_proj", qkv_bias=True),
    "baichuan": Traits(qkv=("W_pack",)),
    "internlm2": Traits(qkv=("wqkv",), out="wo", gate=("w1", "w3"), down="w2"),
    "chatglm": Traits(
        qkv=("query_key_value",),
        out="dense",
        gate=("dense_h_to_4h",),
        down="dense_4h_to_h",
        qkv_bias=True,
    ),
    "glm": Traits(  # the first GLM, of 130 billion: biases and layer norms, GeGLU
        qkv=("query_key_value",),
        out="dense",
        gate=("dense_h_to_4h",),
        down="dense_4h_to_h",
        **_GPT_MLP,
    ),
    "gpt_neox": _NEOX,
    "bloom": Traits(
        qkv=("query_key_value",),
        out="dense",
        up="dense_h_to_4h",
        down="dense_4h_to_h",
        embedding_norm=True,
        **_GPT_MLP,
    ),
    "falcon": Traits(
        qkv=("query_key_value",),
        out="dense",
        up="dense_h_to_4h",
        down="dense_4h_to_h",
        norm="layer",
    ),
    "mpt": Traits(qkv=("Wqkv",), out="out_proj", norm="layer-weight"),
    "opt": Traits(
        out="out_proj", up="fc1", down="fc2", learned_positions=True, position_offset=2, **_GPT_MLP
    ),
    "gpt_oss": Traits(qkv_bias=True, out_bias=True, sinks=True, router_bias=True, expert_bias=True),
    "olmo": Traits(norm="none"),
    "olmo2": Traits(qk_norm="all"),
    "olmo3": Traits(qk_norm="all"),
    "olmoe": Traits(qk_norm="all"),
    "minimax_m2": Traits(qk_norm="all"),
    "glm4": Traits(qkv_bias=True, gate=("gate_up_proj",), norms_per_layer=4),
    "glm4_moe": Traits(qkv_bias=True),
    "bert": _BERT,
    "roberta": _BERT,
    "xlm-roberta": _BERT,
    "distilbert": replace(
        _BERT,
        qkv=("q_lin", "k_lin", "v_lin"),
        out="out_lin",
        up="lin1",
        down="lin2",
    ),
    "t5": Traits(
        qkv=("q", "k", "v"),
        out="o",
        gate=("wi_0", "wi_1"),
        up="wi",
        down="wo",
        encoder_decoder=True,
    ),
    "vit": Traits(
        qkv=("query", "key", "value"),
        out="dense",
        up="intermediate.dense",
        down="output.dense",
        encoder=True,
        **_GPT_MLP,
    ),
    "clip": Traits(
        out="out_proj", up="fc1", down="fc2", learned_positions=True, encoder=True, **_GPT_MLP
    ),
}


def traits(family: str) -> Traits:
    """Of a family; those of ``llama`` for one that is not in the table."""
    return FAMILIES.get(family, FAMILIES["llama"])
