"""Adapters of peft by their configuration."""

from __future__ import annotations

import json

import pytest

from gputop.cli.errors import CliError
from gputop.cli.fit import estimate as command
from gputop_analysis import catalog
from gputop_analysis.vram.options import setup_of, values_of
from gputop_analysis.vram.peft_config import KINDS, OF_VALUES, as_lora, fields, kind, text_of
from gputop_analysis.vram.question import estimate
from gputop_analysis.vram.rules import check
from gputop_analysis.vram.setup import Lora, Setup
from gputop_analysis.vram.tiers import NotCoveredError

SAVED = {
    "peft_type": "LORA",
    "base_model_name_or_path": "somebody/model",
    "inference_mode": True,
    "r": 8,
    "lora_alpha": 32,
    "lora_dropout": 0.1,
    "target_modules": ["k_proj", "o_proj"],
    "rank_pattern": {},
    "bias": "none",
    "modules_to_save": ["lm_head"],
}


@pytest.fixture
def smollm() -> Setup:
    return setup_of(catalog.model("smollm2-135m"), {})


def saved(folder, **fields_: object) -> str:
    (folder / "adapter_config.json").write_text(json.dumps(SAVED | fields_))
    return str(folder)


def test_a_kind_a_folder_a_file_and_its_text_are_read_alike(tmp_path):
    folder = saved(tmp_path)
    by_file = text_of(str(tmp_path / "adapter_config.json"))
    assert text_of(folder) == by_file == text_of(json.dumps(SAVED)) == text_of(by_file)
    assert "inference_mode" not in fields(by_file) and fields(by_file)["r"] == 8
    assert text_of("IA3") == text_of("ia3") == '{"peft_type": "IA3"}' and text_of(" ") == ""
    assert all(kind(text_of(name)) == name for name in KINDS)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("lora2", "nearest: lora"),
        ("no/such/file.json", "takes a kind of peft"),
        ("{broken", "is no JSON"),
        ('{"r": 8}', "names no peft_type"),
    ],
)
def test_what_is_no_adapter_is_said(value: str, says: str):
    with pytest.raises(ValueError, match=says):
        text_of(value)


def test_a_lora_of_a_file_is_lora_in_options(smollm, tmp_path):
    setup = setup_of(smollm.model, {"adapter": saved(tmp_path)})
    assert setup.lora == Lora(8, ("k_proj", "o_proj"), dropout=0.1)
    assert setup.modules_to_save == ("head",)
    assert setup_of(smollm.model, {"adapter": str(tmp_path), "lora_rank": 4}).lora.rank == 4
    assert estimate(setup, "formula").peak.tier == "formula"


@pytest.mark.parametrize(
    "field", [{"rank_pattern": {"q_proj": 4}}, {"target_modules": ".*proj"}, {"bias": "all"}]
)
def test_a_lora_that_options_cannot_say_is_traced_by_its_configuration(smollm, tmp_path, field):
    text = text_of(saved(tmp_path, **field))
    assert as_lora(text) is None
    setup = setup_of(smollm.model, {"adapter": text})
    assert setup.lora == Lora(rank=0, peft=text)
    with pytest.raises(NotCoveredError, match="kind lora is traced"):
        estimate(setup, "formula")


def test_an_adapter_comes_back_out_of_its_setup(smollm):
    setup = setup_of(smollm.model, {"adapter": "ia3", "lora_dtype": "bf16"})
    assert setup_of(smollm.model, values_of(setup)) == setup


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"adapter": "ia3", "lora_rank": 8}, "in the place of --lora-rank"),
        ({"adapter": "ia3", "quant": "nf4"}, "under LoRA, not under ia3"),
        ({"adapter": "ia3", "tp": 2}, "on whole layers"),
        ({"adapter": "ia3", "lengths": "varied"}, "leave --lengths out"),
        *(({"adapter": name}, "values of weights") for name in sorted(OF_VALUES)),
    ],
)
def test_what_a_trace_cannot_answer_is_refused_with_its_reason(smollm, values, says):
    with pytest.raises(ValueError, match=says):
        check(setup_of(smollm.model, values))


def test_options_of_lora_mean_nothing_beside_it():
    with pytest.raises(CliError, match="--dora changes nothing"):
        command.execute(["--model", "smollm2-135m", "--adapter", "ia3", "--dora"])


PUBLISHED = {
    '{"peft_type": "IA3"}': 21.64,
    '{"peft_type": "LN_TUNING"}': 19.73,
    '{"peft_type": "LOHA", "r": 32, "target_modules": ["q_proj", "v_proj"]}': 22.27,
    '{"peft_type": "OFT", "oft_block_size": 32, "target_modules": ["q_proj", "v_proj"]}': 20.80,
    '{"peft_type": "PROMPT_TUNING", "num_virtual_tokens": 200}': 22.72,
    '{"peft_type": "ADAPTION_PROMPT", "adapter_layers": 28, "adapter_len": 100}': 20.91,
}
"""GiB reserved by Llama 3.2 3B, four texts of 768 tokens (huggingface/peft,
``method_comparison/MetaMathQA/results``)."""


@pytest.mark.parametrize("config", PUBLISHED)
def test_a_trace_comes_near_what_peft_measured(config: str, capsys):
    pytest.importorskip("transformers")
    pytest.importorskip("peft")
    words = [
        "--model",
        "llama-3.2-3b",
        "--seq",
        "768",
        "--micro-batch",
        "4",
        "--json",
        "--no-calibration",
    ]
    command.execute([*words, "--adapter", config])
    answer = json.loads(capsys.readouterr().out)
    assert answer["tier"] == "trace" and answer["levers"] == []
    assert abs(answer["peak_reserved_gib"] / PUBLISHED[config] - 1) <= 0.03


def test_where_it_fits_is_asked_of_a_trace():
    with pytest.raises(CliError, match="kind ia3 is traced: gputop estimate"):
        command.execute(["--model", "llama-3.2-3b", "--gpus", "2xA100", "--adapter", "ia3"])
