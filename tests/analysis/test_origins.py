"""What findings say of where a NaN came from, on built records."""

import numpy as np
from analysis_support import Builder

from gputop_agent import wire
from gputop_analysis.findings import evaluate

BATCH = {"number": 15, "finite": False, "rows": [2], "samples": [114], "files": ["b/114.npy"]}


def nan_run(folder, *origins, ranks=1, step=50):
    build = Builder(folder)
    for rank in range(ranks):
        build.hello(rank, world_size=ranks)
        for _ in range(step):
            build.step(rank, forward=20.0, loss=1.5)
        for _ in range(10):
            build.step(rank, forward=20.0, flags=wire.F_NONFINITE, loss=float("nan"))
        build.event("nonfinite", rank=rank, step=step, value="nan")
    for origin in origins:
        build.event("nan_origin", **{"rank": 0, "step": step, "watched": True, **origin})
    return next(one for one in evaluate(build.open()) if one.id == "NU01")


def test_layer_operation_direction_limit_and_batch_stand_in_the_finding(tmp_path):
    nan = nan_run(
        tmp_path,
        {
            "direction": "forward",
            "layer": "body.attn",
            "class": "Attention",
            "operation": "exp",
            "value": "inf",
            "dtype": "float32",
            "limit": 3.4028e38,
            "largest_input": 121.5,
            "course_steps": [20, 40],
            "course_largest": [8.25, 64.0],
            "batch": {"number": 15, "finite": True},
        },
    )
    assert nan.title == "loss is NaN at step 50 on rank 0 and stays so: exp in body.attn"
    for words in (
        "forward: exp in body.attn (Attention) gave inf",
        "of values up to 121.5, float32 ends at 3.403e+38",
        "at most 64 at step 40",
        "batch 15 of its epoch, which is finite itself",
    ):
        assert words in nan.evidence, words
    assert "take the maximum off first" in nan.fix
    assert ("layer", "body.attn") in [(one.name, one.value) for one in nan.proof.inputs]


def test_the_rank_whose_own_gradient_it_was_comes_before_those_that_met_the_sum(tmp_path):
    nan = nan_run(
        tmp_path,
        {"rank": 0, "step": 49, "direction": "reduced", "layer": "stem", "class": "Linear"},
        {"rank": 1, "step": 49, "direction": "backward", "layer": "body.odd", "operation": "sqrt"},
        ranks=2,
    )
    assert "origin: step 49 on rank 1, backward" in nan.evidence
    assert "backward of sqrt in body.odd" in nan.title


def test_a_bad_sample_is_the_first_thing_to_look_at(tmp_path):
    nan = nan_run(tmp_path, {"direction": "input", "class": "Net", "layer": "", "batch": BATCH})
    assert nan.fix.startswith("look at b/114.npy") and "learning rate" not in nan.fix
    assert "the batch is not finite" in nan.title and "sample 114 (b/114.npy)" in nan.evidence


def test_a_value_that_meets_the_output_in_the_loss_is_not_laid_on_a_sample(tmp_path):
    beside = {"direction": "input", "layer": "loss", "operation": "mul", "value": "NaN"}
    nan = nan_run(tmp_path / "a", {**beside, "batch": {"number": 121, "samples": [7680]}})
    assert "NaN goes into mul after the model" in nan.title
    assert "beside the model's output" in nan.evidence
    assert nan.fix.startswith("look at what goes into mul after the model")
    assert "sample 7680" not in nan.fix and "where the dataset is read" not in nan.fix
    read = nan_run(tmp_path / "b", {**beside, "batch": {"number": 121, "finite": True}})
    assert "targets" not in read.fix
    target = nan_run(tmp_path / "c", {**beside, "batch": {**BATCH, "finite": False}})
    assert "the batch is not finite" in target.title and target.fix.startswith("look at b/114.npy")


def test_what_cannot_be_told_is_said_and_how_to_learn_it(tmp_path):
    gone = nan_run(
        tmp_path / "a",
        {"direction": "gone", "layer": "x", "bad_layers": 8, "layers": 8, "watched": False},
    )
    assert "no longer to be told" in gone.evidence and "--watch-numerics" in gone.evidence
    nothing = nan_run(tmp_path / "b")
    assert "origin" not in nothing.evidence and "--watch-numerics" in nothing.fix
    elsewhere = nan_run(tmp_path / "c", {"step": 12, "direction": "forward", "layer": "x"})
    assert "origin" not in elsewhere.evidence


def test_a_spike_names_the_layer_that_moved_most_before_it(tmp_path):
    random = np.random.default_rng(0)

    def spike(folder, told):
        build = Builder(folder)
        build.hello()
        for step in range(300):
            noise = 0.05 * random.standard_normal()
            build.step(forward=5.0, loss=2.0 + noise + 6 * (step == 211))
        if told:
            build.event(
                "spike_origin",
                rank=0,
                step=211,
                loss=8.0,
                layer="blocks.3.mlp",
                relative_update=0.25,
                usual_update=0.001,
                update_step=210,
            )
        return next(one for one in evaluate(build.open()) if one.id == "NU02")

    named = spike(tmp_path / "a", True)
    assert (
        "blocks.3.mlp moved most out of line: by 0.25 of their size at step 210" in named.evidence
    )
    assert "--watch-numerics" not in named.fix
    assert "--watch-numerics" in spike(tmp_path / "b", False).fix


def test_a_division_in_the_loss_is_mended_there_and_by_no_learning_rate(tmp_path):
    in_loss = {"direction": "forward", "how": "graph", "operation": "div", "layer": "loss"}
    nan = nan_run(tmp_path, {**in_loss, "between": ["head", ""], "watched": False})
    assert nan.title.endswith("div after head")
    assert "forward: div after head gave a value that is not finite" in nan.evidence
    assert nan.fix.startswith("keep the divisor away from 0")
    assert "learning rate" not in nan.fix and "clip" not in nan.fix


def test_of_a_whole_batch_no_sample_is_named_alone(tmp_path):
    batch = {"number": 63, "samples": [1984, 1985, 1986]}
    nan = nan_run(tmp_path, {"direction": "input", "layer": "0", "class": "Linear", "batch": batch})
    assert nan.title.endswith("NaN goes into layer 0 (Linear)")
    assert nan.fix.startswith("look at the batch of that step (samples from 1,984)")
