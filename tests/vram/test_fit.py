"""One question, one answer: ``gputop fit``, ``gputop estimate --gpus`` and ``gputop
plan`` agree.
"""

from __future__ import annotations

import json
import shlex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputop.cli import main
from gputop_analysis import catalog
from gputop_analysis.planner import memory
from gputop_analysis.planner.choices import choice
from gputop_analysis.planner.hardware import cluster
from gputop_analysis.planner.job import Job, trainable_share
from gputop_analysis.planner.search import plan
from gputop_analysis.planner.space import Limits
from gputop_analysis.units import GIB
from gputop_analysis.vram.fitting import NO, TIGHT, YES, fit, verdict
from gputop_analysis.vram.question import estimate
from gputop_analysis.vram.setup import Lora, Setup

LLAMA = catalog.model("llama-3-8b")


def asked(capsys: pytest.CaptureFixture[str], command: str) -> str:
    assert main(shlex.split(command)) == 0
    return capsys.readouterr().out


def test_the_verdict_comes_first_with_what_it_would_take(capsys):
    said = asked(capsys, "fit 8b --gpus RTX4090").splitlines()
    assert said[0].startswith("tight for full fine-tuning, yes for LoRA")
    assert "llama-3.1-8b on 1 x GeForce RTX 4090" in said[0]
    assert any("gputop estimate" in line and "--qlora" in line for line in said)
    assert "what it would take:" in said


def test_a_large_model_fits_two_cards_by_qlora_and_fsdp(capsys):
    found = json.loads(asked(capsys, "fit 70b --gpus 2xA100 --json"))
    by_purpose = {way["purpose"]: way for way in found["ways"]}
    assert found["verdict"] == TIGHT and by_purpose["full fine-tuning"]["host_gib"] > 900
    assert by_purpose["QLoRA"]["verdict"] == YES and not by_purpose["QLoRA"]["host_gib"]
    larger = json.loads(asked(capsys, "fit 70b --gpus 2xA100-80GB --json"))
    assert {way["purpose"]: way["verdict"] for way in larger["ways"]}["QLoRA"] == YES
    assert "FSDP" in by_purpose["QLoRA"]["changes"]
    more = found["more_gpus"][0]
    assert more["purpose"] == "full fine-tuning" and more["gpus"] > 2 and not more["host_gib"]


def test_every_command_that_is_named_answers_and_says_the_same(capsys):
    found = json.loads(asked(capsys, "fit qwen2.5-7b --gpus 4xL4 --seq 1024 --json"))
    for way in [*found["ways"], *found["more_gpus"]]:
        told = json.loads(asked(capsys, way["command"].removeprefix("gputop ") + " --json"))
        assert told["device_total_gib"] == pytest.approx(way["device_total_gib"])
        assert told["fits_capacity"] == (way["verdict"] != NO)


def test_estimate_with_gpus_is_the_same_question(capsys):
    words = "--gpus 2xA100 --lora --json"
    told = asked(capsys, f"estimate --model mistral-7b {words}")
    assert json.loads(told) == json.loads(asked(capsys, f"fit mistral-7b {words}"))


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("fit --gpus 2xA100", "which model"),
        ("fit 70b", "on which GPUs"),
        ("fit 70b --gpus 2 --gpu 8xA100", "leave one out"),
        ("fit 70b --gpus 2xA100 --gpu H100", "leave one out"),
        ("fit 70b --gpus 4xH100 --tp 3", "does not divide"),
        ("fit 70b --gpus 4xH100 --dp 8", "leave --dp out"),
        ("fit llama-3-8b --gpus H100 --lora-dtype bf16", "changes nothing here"),
        ("estimate --model 8b --gpus 2xA100 --tier trace", "no meaning beside --gpus"),
        ("plan --model llama-3-8b --gpu H100 --lora-targets q_proj", "needs --lora"),
    ],
)
def test_what_cannot_be_answered_is_said_in_a_line(capsys, command: str, said: str):
    assert main(shlex.split(command)) == 2
    err = capsys.readouterr().err
    assert said in err and "Traceback" not in err


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(["llama-3.2-1b", "mistral-7b-v0.1", "qwen2.5-14b", "mixtral-8x7b"]),
    st.sampled_from(["A100-80GB", "H100", "L40S", "RTX 4090"]),
    st.sampled_from([1, 2, 8, 16]),
    st.sampled_from([512, 2048, 8192]),
    st.sampled_from(["full", "lora", "qlora"]),
)
def test_estimate_and_plan_never_contradict_each_other(name, gpu, gpus, seq, kind):
    adapters = None if kind == "full" else Lora(targets=("all-linear",))
    share, quantized = trainable_share(kind != "full"), "nf4" if kind == "qlora" else ""
    model = catalog.model(name)
    job = Job(model, seq, 4 * gpus, trainable_share=share, lora=adapters, quantized=quantized)
    limits = Limits(micro_batch=(1, 4), vpp=(1,))
    try:
        found = plan(job, cluster(gpu, gpus), limits)
    except ValueError:
        return
    usable = found.cluster.device.usable_bytes
    for index in {*found.order[:2].tolist(), *found.nearest.tolist()}:
        row, split = found.layouts.row(index), found.layouts.split(index)
        one = memory.setup_of(job, row).but(
            parallel=split,
            micro_batch=int(row["micro_batch"]),
            accumulation=choice(found, index).accumulation,
        )
        told = estimate(one, "formula", usable, advice=False)
        assert told.runs_in_capacity or not found.fits[index]
        if told.runs_in_capacity == bool(found.fits[index]):
            total = min(told.device_total, usable) / GIB
            shown = choice(found, index).reserved_gib
            assert not found.fits[index] or total == pytest.approx(shown, rel=0.02)


def test_a_verdict_follows_the_safe_end_of_the_interval():
    found = estimate(Setup(LLAMA, checkpointing="full"), "formula", 1 << 40, advice=False)
    high = found.at_most
    assert high > found.peak.reserved * (1 + found.interval_pct[1] / 100) + found.context
    assert verdict(found, round(high) + 1) == YES
    assert verdict(found, found.device_total + 1) == TIGHT
    short = estimate(found.setup, "formula", found.peak.allocated // 2, advice=False)
    assert verdict(short, found.peak.allocated // 2) == NO


def test_more_gpus_never_turn_a_yes_into_a_no():
    gpu = catalog.gpu("A100-80GB")
    verdicts = [fit(Setup(LLAMA, 2048), gpu, count).verdict for count in (1, 2, 4, 8, 64)]
    assert verdicts == sorted(verdicts, key=[NO, TIGHT, YES].index)


def test_one_gpu_offloads_by_deepspeed():
    """What is printed asks for the same again."""
    answer = fit(Setup(catalog.model("llama-2-7b")), catalog.gpu("RTX 4090"), 1)
    way = answer.ways[0]
    assert (way.purpose, way.verdict) == ("full fine-tuning", "tight")
    assert way.host_bytes > 90 * GIB and "DeepSpeed" in way.changes
    setup = way.estimate.setup
    assert (setup.recipe, setup.parallel.sharding) == ("deepspeed", "zero2")
    assert {"--sharding", "zero2", "--offload", "optimizer"} <= set(way.words)


def test_zero_that_was_asked_for_stays_on_one_gpu():
    setup = Setup(LLAMA, recipe="deepspeed").but(sharding="zero3", offload="all")
    answer = fit(setup, catalog.gpu("A100 80GB"), 1)
    assert all(way.estimate.setup.parallel.sharding == "zero3" for way in answer.ways)
