"""Estimate, plan, launch and validate judge a split alike."""

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from gputop_analysis.catalog import model
from gputop_analysis.experimental import of_split
from gputop_analysis.launch import check_megatron
from gputop_analysis.launch.emit import emit
from gputop_analysis.launch.strategy import Strategy
from gputop_analysis.parallelism.rules import SPLIT_RULES, STEP_RULES
from gputop_analysis.parallelism.split import OF_STAGE, SHARDINGS, STAGE, Split
from gputop_analysis.planner.hardware import cluster
from gputop_analysis.planner.job import Job
from gputop_analysis.planner.layout import Layouts
from gputop_analysis.planner.rules import allowed, broken
from gputop_analysis.planner.space import Limits, configurations
from gputop_analysis.vram.rules import check
from gputop_analysis.vram.setup import Setup

MODELS = {
    name: model(name) for name in ("llama-3-8b", "mixtral-8x7b", "deepseek-v2-lite", "gpt2-xl")
}
DEGREE = st.sampled_from([1, 1, 2, 3, 4, 8])
SEQ = 1024


@st.composite
def splits(draw):
    """A split by the planner's names."""
    values = {name: draw(DEGREE) for name in ("tp", "pp", "cp", "ep", "dp")}
    values |= {
        "vpp": draw(st.sampled_from([1, 1, 1, 2, 4])),
        "zero": draw(st.sampled_from([0, 0, 1, 2, 3, 3])),
    }
    values |= {"replicas": draw(st.sampled_from([1, 1, 1, 2, 4])) if values["zero"] == 3 else 1}
    return values | {"sequence_parallel": values["tp"] > 1 and draw(st.booleans())}


@settings(max_examples=500, deadline=None)
@given(splits(), st.sampled_from(sorted(MODELS)), st.sampled_from(["megatron", "torchtitan"]))
def test_estimate_and_plan_agree(values, name, recipe):
    layouts = Layouts.of(**values)
    world, batch = int(layouts.world[0]), 2 * values["dp"] * values["pp"]
    job = Job(MODELS[name], SEQ, batch, recipe=recipe)
    planned = bool(allowed(job, layouts, world)[0])
    assert planned == (not broken(job, layouts, world))
    setup = Setup(MODELS[name], seq=SEQ, parallel=layouts.split(0), recipe=recipe)
    try:
        check(setup)
        estimated = True
    except ValueError:
        estimated = False
    event(f"allowed: {planned}")
    assert planned == estimated
    if planned:
        Strategy.of_layout(
            layouts.row(0), 1, world, global_batch=batch, seq=SEQ, model=MODELS[name]
        ).check()


@settings(max_examples=60, deadline=None)
@given(splits(), st.sampled_from(["llama-3-8b", "mixtral-8x7b"]))
def test_what_plan_allows_validates_as_a_megatron_command(values, name):
    values |= {"zero": min(values["zero"], 1), "replicas": 1}
    layouts = Layouts.of(**values)
    world, batch = int(layouts.world[0]), 2 * values["dp"] * values["pp"]
    if not allowed(Job(MODELS[name], SEQ, batch, recipe="torchtitan"), layouts, world)[0]:
        return
    strategy = Strategy.of_layout(
        layouts.row(0), 1, world, global_batch=batch, seq=SEQ, model=MODELS[name]
    )
    command = list(emit(strategy, "megatron").command)
    words = command[command.index("pretrain_gpt.py") + 1 :]
    assert [problem.text for problem in check_megatron.check(words, world)] == []


@pytest.mark.parametrize(
    ("sharding", "allowed_with_stages"),
    [
        ("fsdp2", True),
        ("hsdp", True),
        ("zero1", True),
        ("ddp", True),
        ("fsdp1", False),
        ("zero2", False),
        ("zero3", False),
    ],
)
def test_fsdp2_goes_with_a_pipeline_and_what_holds_whole_gradients_does_not(
    sharding, allowed_with_stages
):
    setup = Setup(
        MODELS["llama-3-8b"],
        parallel=Split(dp=4, pp=2, sharding=sharding, replicas=2 if sharding == "hsdp" else 1),
    )
    if allowed_with_stages:
        check(setup)
    else:
        with pytest.raises(ValueError, match="does not go with pipeline parallelism"):
            check(setup)


def test_fsdp_with_a_pipeline_is_planned_where_it_is_asked_for():
    job, place = Job(model("llama-3-70b"), seq=8192, global_batch=64), cluster("H100", 64)
    asked = configurations(job, place, Limits(zero=(3,), pp=(2,)))
    assert len(asked) and set(asked.pp.tolist()) == {2} and set(asked.zero.tolist()) == {3}
    unasked = configurations(job, place)
    assert not ((unasked.pp > 1) & (unasked.zero == 3)).any()


def test_experts_fold_over_tensor_parallel_ranks():
    split = Split(dp=4, tp=2, ep=8, sequence_parallel=True, sharding="ddp")
    assert split.expert_tp == 1
    check(Setup(MODELS["mixtral-8x7b"], parallel=split))
    layouts = Layouts.of(dp=4, tp=2, ep=[8, 4], sequence_parallel=True)
    assert layouts.expert_tp.tolist() == [1, 2]
    assert allowed(Job(MODELS["mixtral-8x7b"], 4096, 8), layouts, 8).all()
    with pytest.raises(ValueError, match="must divide dp x cp x tp = 8"):
        check(
            Setup(
                MODELS["mixtral-8x7b"],
                parallel=Split(dp=4, tp=2, ep=8, etp=2, sequence_parallel=True),
            )
        )


def test_every_kind_of_sharding_has_a_stage_and_every_rule_a_name():
    assert set(SHARDINGS) == set(STAGE) and [STAGE[kind] for kind in OF_STAGE] == [0, 1, 2, 3]
    names = [rule.name for rule in (*SPLIT_RULES, *STEP_RULES)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("split", "said"),
    [
        (Split(dp=4, pp=2, sharding="fsdp2"), "FSDP in a pipeline"),
        (Split(dp=4, tp=2, ep=8, sequence_parallel=True, sharding="ddp"), "folded over tp"),
        (Split(dp=4, pp=3, sharding="zero1"), "32 layers on 3 stages"),
        (Split(dp=4, pp=2, tp=2, sharding="zero1"), ""),
    ],
)
def test_what_no_run_has_calibrated_is_called_experimental(split, said):
    found = of_split(split, layers=32)
    assert [said in text for text in found] == [True] * bool(said)
