"""`gputop estimate` and `gputop plan` never contradict each other."""

import json
import shlex

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from gputop.cli import main
from gputop_analysis.catalog import gpu, model
from gputop_analysis.planner import memory
from gputop_analysis.planner.job import Job
from gputop_analysis.planner.layout import Layouts
from gputop_analysis.planner.rules import allowed
from gputop_analysis.vram.question import estimate
from gputop_analysis.vram.setup import Lora

GPUS = ("A100-SXM4-80GB", "H100-SXM5-80GB", "RTX-4090")
DEGREE = st.sampled_from([1, 1, 2, 4, 8])


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(["llama-3-8b", "mixtral-8x7b", "llama-3.1-405b", "deepseek-v2-lite"]),
    degrees=st.fixed_dictionaries(dict.fromkeys(("tp", "pp", "dp", "micro_batch"), DEGREE)),
    zero=st.sampled_from([0, 1, 3]),
    recompute=st.sampled_from([0, 1, 2]),
    adapters=st.sampled_from([None, Lora(), "nf4"]),
    recipe=st.sampled_from(["megatron", "torchtitan", "deepspeed"]),
)
@example(
    name="llama-3-8b",
    degrees={"tp": 1, "pp": 1, "dp": 8, "micro_batch": 8},
    zero=3,
    recompute=0,
    adapters=None,
    recipe="torchtitan",
)
def test_a_plan_and_an_estimate_of_it_have_one_memory(
    name, degrees, zero, recompute, adapters, recipe
):
    quantized = "nf4" if adapters == "nf4" else ""
    lora = Lora(targets=("all-linear",)) if quantized else adapters
    share = 0.01 if lora else 1.0
    job = Job(model(name), 2048, 64, trainable_share=share, lora=lora, quantized=quantized)
    job = job.of_framework("", recipe, job.habits)
    apart = degrees["tp"] > 1
    layouts = Layouts.of(**degrees, zero=zero, recompute=recompute, sequence_parallel=apart)
    assume(allowed(job, layouts, int(layouts.world[0]))[0])
    assume(recipe != "deepspeed" or zero < 3 or degrees["pp"] == 1)  # no framework of its makes it
    planned = memory.sizes(job, layouts)
    setup = memory.setup_at(job, layouts, 0)
    stages = [setup.but(pipeline_stage=stage) for stage in {0, degrees["pp"] - 1}]
    ends = [estimate(stage, "formula", advice=False) for stage in stages]
    assert max(end.peak.allocated for end in ends) == pytest.approx(planned.allocated[0])
    assert max(end.device_total for end in ends) == pytest.approx(planned.device[0])
    for usable in (gpu(name).usable_bytes for name in GPUS):
        ran = [estimate(stage, "formula", usable, advice=False) for stage in stages]
        assert all(end.runs_in_capacity for end in ran) == (planned.least[0] <= usable)


def test_the_command_beside_a_plan_can_be_pasted_and_says_the_same(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    asked = ["plan", "--model", "llama-3-70b", "--gpu", "H100", "--gpus", "32", "--json"]
    assert main(asked) == 0
    pick = json.loads(capsys.readouterr().out)["pick"]
    assert main([*shlex.split(pick["estimate"])[1:], "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["peak_allocated_gib"] == pytest.approx(pick["allocated_gib"], rel=0.01)
    assert found["device_total_gib"] == pytest.approx(pick["device_total_gib"], rel=0.01)
