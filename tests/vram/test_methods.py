"""Ways to train after pre-training, bases in other formats, a server beside the training."""

from __future__ import annotations

import json

import pytest

from gputop.cli.fit import estimate as command
from gputop_analysis import catalog
from gputop_analysis.vram.methods import METHODS, SERVER_SHARE, spelled_out
from gputop_analysis.vram.options import OPTION, parse, setup_of
from gputop_analysis.vram.question import estimate
from gputop_analysis.vram.setup import Lora, Setup


def answered(words: str, capsys) -> tuple[dict, str]:
    command.execute(f"{words} --tier formula --json --no-calibration".split())
    printed = capsys.readouterr()
    return json.loads(printed.out), printed.err


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_said_in_options(name: str):
    for adapters in (False, True):
        values = spelled_out(name, 3, adapters)
        assert values.keys() <= OPTION.keys()
        for option, value in values.items():
            assert parse(option, value) == value


def test_pairs_are_two_sequences_and_a_reference_model_a_copy(capsys):
    one, said = answered("--model smollm2-135m --dpo --micro-batch 2", capsys)
    other, _ = answered("--model smollm2-135m --micro-batch 4 --roles reference", capsys)
    assert "a micro-batch of 2 is 4 sequences" in said
    assert one["setup"] == other["setup"] and one["device_total_gib"] == other["device_total_gib"]


def test_adapters_are_their_own_reference(capsys):
    dpo, _ = answered("--model smollm2-135m --lora --method dpo", capsys)
    assert dpo["setup"]["roles"] == [] and dpo["setup"]["micro_batch"] == 2
    ppo, _ = answered("--model smollm2-135m --ppo", capsys)
    assert ppo["setup"]["roles"] == ["critic", "reference", "reward"]


def test_what_is_typed_out_wins_over_the_method(capsys):
    answer, _ = answered("--model smollm2-135m --grpo --server-share 0.5", capsys)
    assert answer["setup"]["server_share"] == 0.5
    answer, _ = answered("--model smollm2-135m --grpo", capsys)
    assert answer["setup"]["server_share"] == SERVER_SHARE


def test_what_is_not_quantised_may_be_in_fp32_which_the_upper_end_counts():
    llama = Setup(catalog.model("llama-3.1-8b"), lora=Lora(), quantized="nf4", lengths="fixed")
    in_fp32 = estimate(llama.but(weights="fp32"), "formula", advice=False)
    left_open = estimate(llama, "formula", advice=False)
    more = in_fp32.peak.reserved - left_open.peak.reserved
    assert left_open.most_reserved == in_fp32.peak.reserved and left_open.at_most > more
    (note,) = (note for note in left_open.notes if "prepare_model_for_kbit_training" in note)
    assert "--weights fp32" in note and f"{more / 2**30:.2f} GiB more" in note
    said = llama.but(weights="bf16"), llama.but(weights="fp32"), llama.but(quantized="gptq")
    for setup in (*said, llama.but(recipe="litgpt")):
        answer = estimate(setup, "formula", advice=False)
        assert not answer.most_reserved and not any("kbit" in note for note in answer.notes)


def test_a_server_takes_its_share_of_each_gpu(smollm):
    alone = estimate(smollm, "formula", advice=False)
    beside = estimate(smollm.but(server_share=0.25), "formula", advice=False)
    assert beside.device_total == alone.device_total
    for fit, with_server in zip(alone.fits, beside.fits, strict=True):
        assert abs(with_server.headroom - fit.headroom + 0.25 * fit.memory) <= 1
    assert any("a server beside it takes 25%" in note for note in beside.notes)


@pytest.fixture
def smollm():
    from gputop_analysis.catalog import model

    return setup_of(model("smollm2-135m"), {})


def test_formats_of_four_bits_are_counted_as_nf4(smollm):
    for name in ("gptq", "awq", "nf4"):
        assert setup_of(smollm.model, {"quant": name, "lora_rank": 8}).quantized == "nf4"


def test_a_base_called_after_its_bits_has_them_under_adapters(capsys):
    name = "--model TheBloke/Llama-2-7B-GPTQ"
    assert answered(f"{name} --lora", capsys)[0]["setup"]["quantized"] == "nf4"
    assert answered(f"{name} --lora --quant none", capsys)[0]["setup"]["quantized"] == ""
    whole, said = answered(name, capsys)
    assert whole["setup"]["quantized"] == "" and "16 bits where they are trained" in said


def test_dora_alone_means_adapters(capsys):
    answer, _ = answered("--model smollm2-135m --dora", capsys)
    assert answer["setup"]["lora"]["rank"] == 16 and answer["setup"]["lora"]["dora"]
    assert answer["uncalibrated"] == []  # peft measured one such run
    answer, _ = answered("--model smollm2-135m --optimizer galore", capsys)
    assert answer["uncalibrated"] == ["GaLore"]
