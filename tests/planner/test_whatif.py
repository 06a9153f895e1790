"""Single changes of a configuration: what the plan itself says of the changed one, and only what
the chip has.
"""

import json

import pytest

from gputop.cli import main
from gputop_analysis.catalog import model
from gputop_analysis.parallelism.split import RECOMPUTES
from gputop_analysis.planner import search
from gputop_analysis.planner.choices import choice
from gputop_analysis.planner.hardware import cluster
from gputop_analysis.planner.job import Job
from gputop_analysis.planner.space import Limits
from gputop_analysis.planner.whatif import KINDS, what_if

JOB = Job(model("llama-3-8b"), seq=4096, global_batch=64)
LIMITS = Limits(tp=(2,), pp=(4,), cp=(1,), micro_batch=(1, 2))


def found(gpu="H100", job=JOB, limits=LIMITS):
    plan = search.plan(job, cluster(gpu, 16), limits)
    return plan, int(plan.order[0])


def test_a_change_of_the_split_is_what_the_plan_says_of_that_split():
    plan, index = found()
    changes = {one.name: one for one in what_if(plan, index)}
    row = plan.layouts.row(index)
    seen = 0
    for other in range(len(plan.layouts)):
        differs = {key for key, value in plan.layouts.row(other).items() if value != row[key]}
        if differs == {"recompute"}:
            kind = RECOMPUTES[int(plan.layouts.recompute[other])]
            change = changes["no recomputation" if kind == "none" else f"{kind} recomputation"]
            one = choice(plan, other)
            assert change.step_s == pytest.approx(one.step_s) and change.fits == one.fits
            assert change.device_total_gib == pytest.approx(one.reserved_gib)
            seen += 1
    assert seen == 2


def test_parts_of_a_change_add_up_to_it():
    plan, index = found()
    for one in what_if(plan, index):
        if not one.rule:
            assert one.step_s - one.before_s == pytest.approx(
                sum(one.parts_s.values()), abs=0.02 * one.before_s
            )
            assert one.kind in KINDS and one.to_json()["memory_change_gib"] is not None


def test_leaner_optimizers_and_zero_bubble_do_what_they_are_for():
    plan, index = found()
    changes = {one.name: one for one in what_if(plan, index)}
    assert changes["adamw-8bit"].device_total_gib < changes["adamw-8bit"].before_gib
    zero_bubble = changes["zero-bubble (ZB-H1)"]
    assert set(zero_bubble.parts_s) == {"bubble"} and zero_bubble.parts_s["bubble"] < 0
    assert zero_bubble.device_total_gib == zero_bubble.before_gib


@pytest.mark.parametrize(("gpu", "has"), [("H100", True), ("A100", False)])
def test_fp8_is_offered_where_the_chip_has_it(gpu, has):
    plan, index = found(gpu)
    changes = {one.name: one for one in what_if(plan, index)}
    assert ("FP8 products" in changes) == has and ("FlashAttention-3" in changes) == has
    assert not has or changes["FP8 products"].parts_s["compute"] < 0


def test_a_change_that_breaks_a_rule_says_which():
    plan, index = found(limits=Limits(tp=(1,), pp=(2,), cp=(1,), zero=(1,), micro_batch=(1,)))
    changes = {one.name: one for one in what_if(plan, index)}
    assert (
        "pipeline" in changes["ZeRO-2"].rule and changes["ZeRO-2"].to_json()["step_time_s"] is None
    )


def test_the_command_shows_them(capsys):
    words = (
        "plan",
        "--model",
        "llama3-8b",
        "--gpu",
        "H100",
        "--gpus",
        "8",
        "--global-batch",
        "64",
        "--what-if",
    )
    assert main([*words, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert {one["kind"] for one in data["what_if"]} >= {
        "precision",
        "checkpointing",
        "optimizer",
        "kernels",
    }
    assert main(list(words)) == 0
    assert "what if" in capsys.readouterr().out
