"""Workloads: presets that are plain settings, serving that obeys its roofline, PPO iterations that
add up.
"""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputop.cli import main
from gputop_analysis.catalog import model
from gputop_analysis.planner import memory, search
from gputop_analysis.planner.hardware import cluster
from gputop_analysis.planner.job import Job
from gputop_analysis.planner.layers import layer
from gputop_analysis.planner.layout import Layouts
from gputop_analysis.planner.space import Limits
from gputop_analysis.workloads import serving
from gputop_analysis.workloads.inference import Serving, servers
from gputop_analysis.workloads.presets import WORKLOADS, said
from gputop_analysis.workloads.rlhf import iterations

LLAMA = model("llama-3-8b")
ROLES = ("critic", "reference", "reward")


pytestmark = pytest.mark.usefixtures("nothing_of_the_user")


def run(capsys, *words):
    code = main(["plan", *words])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_sizes_by_hand():
    one = np.array([1.0])
    assert serving.kv_bytes_per_token(LLAMA, one)[0] == 2 * 32 * 8 * 128 * 2, (
        "keys and values of 8 heads, 32 layers"
    )
    assert serving.kv_bytes_per_token(LLAMA, np.array([16.0]))[0] == 2 * 32 * 1 * 128 * 2, (
        "a head is not divided"
    )
    assert serving.kv_bytes_per_token(model("deepseek-v3"), one)[0] == 61 * (512 + 64) * 2, (
        "MLA's latent"
    )
    assert serving.weight_bytes(LLAMA, "bf16", one)[0] == 2 * 8_030_261_248
    assert serving.weight_bytes(LLAMA, "bf16", np.array([4.0]))[0] * 4 == 2 * 8_030_261_248
    assert (
        serving.weight_bytes(LLAMA, "fp8", one)[0]
        < 0.6 * serving.weight_bytes(LLAMA, "bf16", one)[0]
    )


@settings(max_examples=25)
@given(
    st.sampled_from(["llama-3-8b", "mixtral-8x7b", "deepseek-v3", "gpt2"]),
    st.sampled_from(["H100", "A100-80GB", "L4", "MI300X"]),
    st.sampled_from(["bf16", "fp8"]),
    st.integers(0, 9),
    st.integers(1, 20000),
)
def test_no_token_comes_before_its_weights_and_cache_are_read(name, chip, dtype, power, context):
    shape, hardware = model(name), cluster(chip, 8)
    batch, tp = np.array([2.0**power]), np.array([1.0])
    seconds = float(serving.decode_seconds(shape, hardware, dtype, tp, batch, context=context)[0])
    rate = hardware.device.bytes_per_s
    assert (
        seconds > float(batch[0]) * context * float(serving.kv_bytes_per_token(shape, tp)[0]) / rate
    )
    more = float(serving.decode_seconds(shape, hardware, dtype, tp, 2 * batch, context=context)[0])
    assert seconds <= more <= 2 * seconds * 1.0001, (
        "a larger batch is slower a step and never slower a token"
    )


def test_limits_choose_another_server():
    hardware = cluster("A100-80GB", 4)
    free = servers(Serving(LLAMA, 1024, 256), hardware, 2.0)
    quick = servers(Serving(LLAMA, 1024, 256, first_token_s=1.0, token_s=0.02), hardware, 2.0)
    assert free[0].tokens_per_s == max(one.tokens_per_s for one in free)
    assert quick[0].keeps_limits and quick[0].token_s <= 0.02 < free[0].token_s
    assert {one.name for one in free} == {one.name for one in quick}
    for one in free:
        assert (
            one.tp * one.replicas == 4
            and one.weights_gib + one.kv_gib < one.device_total_gib < 0.9 * 80
        )
        assert one.usd_per_million_tokens == pytest.approx(8 / 3600 / one.tokens_per_s * 1e6)


def test_what_does_not_fit_says_how_much_is_missing():
    with pytest.raises(ValueError, match=r"llama-3-70b does not fit: \d"):
        servers(Serving(model("llama-3-70b"), 1024, 256), cluster("L4", 1))


def test_experts_take_any_number_of_tokens_at_the_same_speed():
    mixtral, device = model("mixtral-8x7b"), cluster("H100", 8).device
    layouts = Layouts.of(ep=8, dp=8, micro_batch=2)
    even, uneven = (
        layer(Job(mixtral, 4096, 64, expert_imbalance=x), device, layouts, True) for x in (1.0, 1.1)
    )
    assert even.weight_gradient < uneven.weight_gradient < 1.25 * even.weight_gradient


def test_frozen_weights_need_no_weight_gradient_of_the_count_either():
    job = Job(LLAMA, seq=2048, global_batch=16)
    assert search.model_flops(job.but(trainable_share=0.0)) < 0.75 * search.model_flops(job)


@pytest.fixture(scope="module")
def ppo():
    job = Job(LLAMA, seq=1024, global_batch=128, roles=ROLES)
    plan = search.plan(job, cluster("H100", 16), Limits(pp=(1,), micro_batch=(2, 4)))
    return plan, iterations(plan, 512, 512)


def test_an_iteration_adds_up_and_the_best_is_first(ppo):
    _, found = ppo
    assert [one.seconds for one in found] == sorted(one.seconds for one in found)
    for one in found[:20]:
        data = one.to_json()
        parts = ("generation_time_s", "scoring_time_s", "update_time_s")
        assert data["iteration_time_s"] == pytest.approx(sum(data[part] for part in parts))
        assert data["update_time_s"] == pytest.approx(2 * one.choice.step_s) and one.at_once >= 1
        assert 0 < one.scoring_s < 4 * one.choice.step_s


def test_four_models_need_more_memory_than_one(ppo):
    plan, _ = ppo
    alone = memory.allocated_bytes(plan.job.but(roles=()), plan.layouts)
    assert (plan.allocated_bytes > alone).all()


@pytest.mark.parametrize("one", WORKLOADS, ids=lambda one: one.name)
def test_every_preset_answers_and_tells_its_settings(capsys, one):
    name = "mixtral-8x7b" if one.name == "moe" else "llama-3-8b"
    code, out, err = run(
        capsys, "--workload", one.name, "--model", name, "--gpu", "H200", "--gpus", "8", "--json"
    )
    data = json.loads(out)
    assert code == 0 and f"workload {one.name}" in err
    rows = data.get("servers") or data.get("iterations") or data["strategies"]
    assert data["workload"] == one.name and set(data["settings"]) == set(one.settings)
    assert rows and all(
        f"--{key.replace('_', '-')}" in err or key == "roles" for key in one.settings
    )
    assert said(one, one.settings)


def test_what_the_user_gives_goes_before_the_preset(capsys):
    words = (
        "--workload",
        "pretrain",
        "--model",
        "llama-3-8b",
        "--gpu",
        "H100",
        "--gpus",
        "16",
        "--seq",
        "2048",
    )
    _, out, err = run(capsys, *words, "--json")
    assert (
        json.loads(out)["seq"] == 2048
        and "--seq 2048" in err
        and json.loads(out)["global_batch"] == 1024
    )


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--workload", "training"), "inference-batch"),
        (("--workload", "moe"), "has no experts"),
        (("--prompt", "5"), "--prompt belongs to --workload"),
        (("--workload", "inference-batch", "--output", "0"), "--output must be at least 1"),
        (("--workload", "inference-streaming", "--token-ms", "-3"), "must be above 0"),
        (("--workload", "rlhf", "--global-batch", "16", "--gpu", "T4"), "fit"),
    ],
)
def test_bad_questions_are_one_line(capsys, words, text):
    code, _, err = run(capsys, "--model", "llama-3-8b", "--gpu", "H100", "--gpus", "8", *words)
    assert code == 2 and text in err and "Traceback" not in err
