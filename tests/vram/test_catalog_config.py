"""Shapes read from the configurations of Transformers, held against the modules that Transformers
builds from them.
"""

from __future__ import annotations

import pytest
from libraries import needs

from gputop_analysis.catalog import shape_from_config, total

pytestmark = needs("torch", "transformers")

SMALL = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 128}
GROUPED = {
    **SMALL,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": 64,
}
MOE = {"moe_intermediate_size": 48, "num_experts_per_tok": 2}
MLA = {"kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8}
VISION = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
}

CAUSAL = {
    "llama": GROUPED,
    "mistral": {**GROUPED, "head_dim": 24},
    "qwen2": GROUPED,
    "qwen3": {**GROUPED, "head_dim": 24},
    "gemma": {**GROUPED, "head_dim": 24},
    "gemma2": {**GROUPED, "head_dim": 24},
    "gemma3_text": {**GROUPED, "head_dim": 24},
    "phi": {**SMALL, "intermediate_size": 96, "tie_word_embeddings": False},
    "phi3": {**GROUPED, "pad_token_id": 0},
    "olmo": GROUPED,
    "olmo2": GROUPED,
    "glm4": {**GROUPED, "head_dim": 16, "pad_token_id": 0},
    "gpt_neox": {**SMALL, "intermediate_size": 96},
    "gpt2": {"n_embd": 64, "n_layer": 3, "n_head": 4, "vocab_size": 128, "n_positions": 64},
    "opt": {**SMALL, "ffn_dim": 96, "word_embed_proj_dim": 64, "max_position_embeddings": 64},
    "bloom": {"hidden_size": 64, "n_layer": 3, "n_head": 4, "vocab_size": 128},
    "falcon": {**SMALL, "multi_query": True, "new_decoder_architecture": False},
    "mpt": {"d_model": 64, "n_layers": 3, "n_heads": 4, "vocab_size": 128, "max_seq_len": 64},
    "arcee": GROUPED,
    "cohere2": GROUPED,
    "ernie4_5": {**GROUPED, "head_dim": 16},
    "exaone4": {**GROUPED, "head_dim": 16},
    "helium": {**GROUPED, "head_dim": 16},
    "hunyuan_v1_dense": {**GROUPED, "head_dim": 16},
    "minicpm3": {**SMALL, **MLA, "intermediate_size": 96, "q_lora_rank": 24},
    "nemotron": {**GROUPED, "head_dim": 16},
    "seed_oss": {**GROUPED, "head_dim": 16},
    "smollm3": {**GROUPED, "pad_token_id": 0},
    "stablelm": {**GROUPED, "use_qkv_bias": False},
    "youtu": {**SMALL, **MLA, "intermediate_size": 96, "q_lora_rank": 24},
    "mixtral": {**GROUPED, "num_local_experts": 4},
    "qwen3_moe": {**GROUPED, **MOE, "num_experts": 4, "head_dim": 16},
    "qwen2_moe": {**GROUPED, **MOE, "num_experts": 4, "shared_expert_intermediate_size": 80},
    "olmoe": {**GROUPED, "num_experts": 4},
    "deepseek_v2": {
        **GROUPED,
        **MOE,
        **MLA,
        "num_key_value_heads": 4,
        "n_routed_experts": 4,
        "q_lora_rank": 24,
        "first_k_dense_replace": 1,
    },
    "deepseek_v3": {
        **GROUPED,
        **MOE,
        **MLA,
        "num_key_value_heads": 4,
        "n_routed_experts": 8,
        "q_lora_rank": 24,
        "first_k_dense_replace": 1,
        "n_group": 2,
        "topk_group": 1,
    },
    "gpt_oss": {**GROUPED, "num_local_experts": 4, "head_dim": 16},
}


def built(config) -> int:
    """Parameters of the causal model that Transformers makes of the configuration, tied
    ones once.
    """
    import torch
    import transformers

    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    model.tie_weights()
    return sum(each.numel() for each in model.parameters())


@pytest.mark.parametrize("family", CAUSAL)
def test_causal_models(family: str):
    import transformers

    config = transformers.AutoConfig.for_model(family, **CAUSAL[family])
    assert total(shape_from_config(config.to_dict())) == built(config)


def test_bert():
    import torch
    import transformers

    config = transformers.BertConfig(**SMALL, intermediate_size=96, max_position_embeddings=64)
    with torch.device("meta"):
        model = transformers.BertModel(config)
    assert total(shape_from_config(config.to_dict())) == sum(
        each.numel() for each in model.parameters()
    )


@pytest.mark.parametrize("projection", ["relu", "gated-gelu"])
def test_t5(projection: str):
    import torch
    import transformers

    config = transformers.T5Config(
        d_model=64,
        num_layers=3,
        num_heads=4,
        d_kv=24,
        d_ff=96,
        vocab_size=128,
        feed_forward_proj=projection,
    )
    with torch.device("meta"):
        model = transformers.T5ForConditionalGeneration(config)
    model.tie_weights()
    assert total(shape_from_config(config.to_dict())) == sum(
        each.numel() for each in model.parameters()
    )


def test_nested_text_and_vision_become_one_shape():
    import transformers

    config = transformers.LlavaConfig(
        text_config=transformers.LlamaConfig(**GROUPED),
        vision_config=transformers.CLIPVisionConfig(**VISION),
    )
    shape = shape_from_config(config.to_dict())
    assert (shape.hidden, shape.layers, shape.kv_heads) == (64, 3, 2)
    assert (shape.vision_hidden, shape.vision_layers, shape.vision_ffn) == (32, 2, 64)


@pytest.mark.parametrize(
    "config", [{}, {"hidden_size": 64}, {"model_type": "wav2vec2", "conv_dim": [512]}]
)
def test_what_is_no_transformer_is_refused_in_words(config: dict):
    with pytest.raises(ValueError, match="it has no"):
        shape_from_config(config)


def test_a_vision_transformer_sees_its_patches():
    config = {
        "model_type": "vit",
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
    }
    shape = shape_from_config({**config, "image_size": 224, "patch_size": 16})
    assert (shape.max_position, shape.vision_patch, shape.gated_mlp) == (196, 16, False)


def test_a_configuration_says_whether_it_drops_anything():
    gpt2 = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 2}
    assert shape_from_config(gpt2).dropout is None
    assert shape_from_config({**gpt2, "resid_pdrop": 0.0, "attn_pdrop": 0.0}).dropout is False
    assert shape_from_config({**gpt2, "resid_pdrop": 0.0, "attn_pdrop": 0.1}).dropout is True
    llama = {**gpt2, "model_type": "llama", "attention_dropout": 0.0}
    assert shape_from_config(llama).dropout is None
