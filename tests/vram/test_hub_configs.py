"""Models that no formula covers, by the names of hubs: their configurations and their trace."""

import json

import pytest

import gputop
from gputop.cli.errors import CliError
from gputop.cli.fit import estimate as command
from gputop.models import resolved
from gputop_analysis.catalog.hub_configs import hub_config, hub_configs

PUBLISHED_MILLIONS = {
    "openai/whisper-tiny": 39,
    "openai/whisper-base": 74,
    "openai/whisper-small": 244,
    "openai/whisper-medium": 769,
    "openai/whisper-large-v2": 1550,
    "openai/whisper-large-v3": 1550,
    "openai/whisper-large-v3-turbo": 809,
    "distil-whisper/distil-large-v3": 756,
    "facebook/wav2vec2-base": 95,
    "facebook/wav2vec2-large": 317,
    "facebook/wav2vec2-large-xlsr-53": 317,
    "facebook/wav2vec2-xls-r-300m": 317,
    "facebook/wav2vec2-xls-r-1b": 965,
    "facebook/hubert-base-ls960": 95,
    "facebook/hubert-large-ll60k": 317,
    "microsoft/wavlm-base": 95,
    "microsoft/wavlm-large": 317,
    "state-spaces/mamba-130m": 130,
    "state-spaces/mamba-370m": 370,
    "state-spaces/mamba-790m": 790,
    "state-spaces/mamba-1.4b": 1400,
    "state-spaces/mamba-2.8b": 2800,
    "state-spaces/mamba2-130m": 130,
    "state-spaces/mamba2-370m": 370,
    "state-spaces/mamba2-780m": 780,
    "state-spaces/mamba2-1.3b": 1300,
    "state-spaces/mamba2-2.7b": 2700,
    "microsoft/deberta-v3-small": 141,
    "microsoft/deberta-v3-base": 184,
    "microsoft/deberta-v3-large": 435,
    "answerdotai/ModernBERT-base": 149,
    "answerdotai/ModernBERT-large": 395,
    "sentence-transformers/all-mpnet-base-v2": 109,
    "facebook/esm2_t6_8M_UR50D": 7.8,
    "facebook/esm2_t12_35M_UR50D": 35,
    "facebook/esm2_t30_150M_UR50D": 150,
    "facebook/esm2_t33_650M_UR50D": 650,
    "facebook/esm2_t36_3B_UR50D": 3000,
    "facebook/bart-base": 139,
    "facebook/bart-large": 406,
    "facebook/mbart-large-50": 611,
    "google/electra-base-discriminator": 109,
    "albert-base-v2": 11.7,
    "facebook/dinov2-small": 22,
    "facebook/dinov2-base": 86,
    "facebook/dinov2-large": 304,
    "facebook/dinov2-giant": 1140,
    "microsoft/swin-tiny-patch4-window7-224": 28,
    "microsoft/swin-small-patch4-window7-224": 50,
    "microsoft/swin-base-patch4-window7-224": 88,
    "microsoft/swin-large-patch4-window7-224": 197,
    "facebook/convnext-tiny-224": 28.6,
    "facebook/convnext-small-224": 50,
    "facebook/convnext-base-224": 88.6,
    "facebook/convnext-large-224": 197.8,
    "microsoft/resnet-18": 11.7,
    "microsoft/resnet-34": 21.8,
    "microsoft/resnet-50": 25.6,
    "microsoft/resnet-101": 44.5,
    "microsoft/resnet-152": 60.2,
}
"""Parameters by papers and model cards, most with the head that the model was published with."""
AS_TYPED = {
    "whisper-large-v3": "openai/whisper-large-v3",
    "facebook/wav2vec2-base-960h": "facebook/wav2vec2-base",
    "resnet50.a1_in1k": "microsoft/resnet-50",
    "timm/convnext_large.fb_in22k": "facebook/convnext-large-224",
    "swin_base_patch4_window7_224": "microsoft/swin-base-patch4-window7-224",
    "vit_large_patch14_dinov2.lvd142m": "facebook/dinov2-large",
    "mamba-130m-hf": "state-spaces/mamba-130m",
    "all-mpnet-base-v2": "sentence-transformers/all-mpnet-base-v2",
}


@pytest.mark.parametrize("name", AS_TYPED)
def test_names_as_they_are_typed(name: str):
    known = hub_config(name)
    assert known is not None and known.name == AS_TYPED[name]
    shape, _ = resolved(name, traces=True)
    assert shape.name == known.name and not shape.hidden


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("thenlper/gte-large", "bert-large"),
        ("BAAI/bge-m3", "xlm-roberta-large"),
        ("Snowflake/snowflake-arctic-embed-l", "bert-large"),
    ],
)
def test_names_of_another_models_architecture(name: str, row: str):
    shape, note = resolved(name)
    assert shape.name == row and name in note


def test_others_are_not_taken_for_them():
    for name in ("llama-3-8b", "whisper-large-v9", "resnet", "mamba", "large", "tiny"):
        assert hub_config(name) is None


def test_parameters_are_those_that_are_published():
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from gputop_tracer.model.configs import config_from_dict

    assert {known.name for known in hub_configs()} == set(PUBLISHED_MILLIONS)
    for known in hub_configs():
        config = config_from_dict(dict(known.config))
        with torch.device("meta"):
            body = transformers.AutoModel.from_config(config)
        count = sum(weight.numel() for weight in body.parameters()) / 1e6
        assert count == pytest.approx(PUBLISHED_MILLIONS[known.name], rel=0.09), known.name


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("openai/whisper-tiny", 37.8),
        ("resnet18.a1_in1k", 11.7),
        ("facebook/esm2_t6_8M_UR50D", 7.5),
        ("hubert-base-ls960", 94.4),
    ],
)
def test_a_name_is_traced_by_itself(name: str, millions: float):
    """bf16 weights of 2 bytes a parameter; AdamW's two moments in the same type."""
    pytest.importorskip("transformers")
    found = gputop.estimate(name, micro_batch=2)
    assert found.peak.tier == "trace"
    assert found.peak.breakdown["weights"] == pytest.approx(2e6 * millions, rel=0.12)
    assert found.peak.allocated > 4 * found.peak.breakdown["weights"]


CONFIGS = [
    {"model_type": "mamba", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 256},
    {"model_type": "whisper", "d_model": 64, "encoder_layers": 2, "decoder_layers": 2},
    {"model_type": "albert", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4},
    {"model_type": "bart", "d_model": 64, "encoder_layers": 2},
    {"model_type": "resnet", "depths": [1, 1, 1, 1]},
]


@pytest.mark.parametrize("config", CONFIGS, ids=[config["model_type"] for config in CONFIGS])
def test_a_configuration_that_no_formula_counts_is_left_to_the_trace(config, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config))
    shape, _ = resolved(str(tmp_path), traces=True)
    assert not shape.hidden and shape.family == config["model_type"]
    with pytest.raises(LookupError, match="gputop estimate --model"):
        resolved(str(tmp_path))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--model whisper-small --tier formula", "is traced"),
        ("--model whisper-small --gpus 2xA100", "gputop estimate --model whisper-small"),
        ("--model resnet50 --seq 128", "takes no tokens"),
        ("--model google/vit-base-patch16-224 --seq 512", "needs a model that reads text"),
        ("--model google/paligemma-3b-pt-224", "--model FOLDER --trace"),
        ("--model llama-3-8b --gpu 24GB", "a size of memory, no GPU: "),
        ("--model llama-3-8b --gpu 7GB", "no GPU of the catalog has so much"),
        ("--model llama-3-8b --method rlhf", "invalid choice: 'rlhf'"),
        ("--model llama-3-8b --galore", "--optimizer galore"),
        ("--model llama-3-8b --galore-rank 64", "it needs --optimizer galore"),
        ("--model llama-3-8b --optimizer galore --lora", "leave the adapters out"),
        ("--model llama-3-8b --optimizer galore --fsdp --dp 8", "which fsdp2 shards"),
        ("--model llama-3-8b --quant gptq", "give a lora_rank"),
        ("--model llama-3-8b --batch 0", "a whole number from 1 on"),
        ("--model llama-3-8b --seq 8kk", "a whole number from 1 on"),
        ("--model llama-3-8b --no-double-quant", "it needs --quant nf4"),
        ("--model Tencent-Hunyuan/HunyuanDiT", "a diffusion model"),
    ],
)
def test_odd_words_get_the_rule_that_they_break(words: str, says: str):
    with pytest.raises(CliError, match=says) as error:
        command.execute(words.split())
    assert error.value.exit_code == 2 and "\n" not in str(error.value)


def test_a_length_in_thousands_and_a_batch_by_its_common_name(capsys):
    words = "--model smollm2-135m --seq 2k --batch 3 --tier formula --json --no-calibration"
    command.execute(words.split())
    setup = json.loads(capsys.readouterr().out)["setup"]
    assert (setup["seq"], setup["micro_batch"]) == (2048, 3)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("cross-encoder/nli-deberta-v3-small", "microsoft/deberta-v3-small"),
        ("jonatasgrosman/wav2vec2-large-xlsr-53-chinese-zh-cn", "facebook/wav2vec2-large-xlsr-53"),
        ("mlx-community/whisper-large-v3-mlx-4bit", "openai/whisper-large-v3"),
        ("facebook/bart-large-cnn", "facebook/bart-large"),
        ("whisper-large-v3-turbo-german", "openai/whisper-large-v3-turbo"),
        ("MoritzLaurer/mDeBERTa-v3-base-mnli-xnli", None),  # another vocabulary
        ("sshleifer/distilbart-cnn-12-6", None),
        ("facebook/convnext-base-384-22k-1k", None),
        ("my-large", None),
    ],
)
def test_a_fine_tune_is_known_by_what_it_is_called_after(name, known):
    config = hub_config(name)
    assert (config and config.name) == known
