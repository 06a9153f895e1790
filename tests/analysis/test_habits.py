"""Findings about what a script does to its optimizer, loss and graph, on built records; each beside
a near miss.
"""

import numpy as np
import pytest
from analysis_support import Builder

from gputop_agent import wire
from gputop_analysis.findings import evaluate

OPTIMIZER = {
    "class": "Adam",
    "module": "torch",
    "parameters": 1000,
    "all_parameters": 1000,
    "site": "train.py:7",
    "weight_decay": 0.5,
}


def trained(path, looks=(), hello=None, steps=300, **columns):
    """Steps of 28 ms, and looks at steps 20, 40, ..."""
    build, random = Builder(path / "r"), np.random.default_rng(0)
    build.hello(0, **{"optimizer": OPTIMIZER, **(hello or {})})
    for _ in range(steps):
        values = {"forward": 8, "backward": 16, "optimizer": 4, "lr": 1e-3, **columns}
        build.step(0, loss=2 + 0.1 * random.standard_normal(), optimizer_steps=1, **values)
    for at, fields in enumerate(looks):
        event = {"lr_max": 1e-3, "backward_at": "train.py:9", "update_at": "train.py:10"}
        event = {"alike": at + 1, **event, **fields}
        build.event("checkup", rank=0, pid=1, step=20 * (at + 1), **event)
    return build


def found(build):
    return {one.id: one for one in evaluate(build.open()) if one.severity != "info"}


@pytest.mark.parametrize(
    ("id", "fields", "near", "site"),
    [
        ("NU16", {"fresh_looks": 3}, {"fresh_looks": 2}, "train.py:7"),
        ("NU16", {"fresh_looks": 3, "fresh_at": "train.py:8"}, {}, "train.py:8"),
        ("NU17", {"normalised_twice": "softmax"}, {}, "train.py:9"),
        ("NU17", {"normalised_twice": "sigmoid"}, {}, "train.py:9"),
        (
            "NU20",
            {"predictions_shape": [8, 1], "errors_shape": [8, 8], "loss_at": "train.py:8"},
            {"loss_at": "train.py:8"},
            "train.py:8",
        ),
        ("NU20", {"predictions_shape": [8], "errors_shape": [8, 8]}, {}, "train.py:9"),
        (
            "NU20",
            {"predictions_shape": [8, 1], "errors_shape": [8, 8], "weighed": True},
            {"weighed": True},
            "train.py:9",
        ),
        ("NU18", {"weights_rms": 1e-7}, {"weights_rms": 1e-3}, "train.py:7"),
        ("CE07", {"graph_again": [0.8, 0.8]}, {"graph_again": [0.1, 0.1]}, "train.py:9"),
        (
            "NU06",
            {"resting": 300, "trainable": 1000},
            {"resting": 3, "trainable": 1000},
            "train.py:7",
        ),
        ("NU19", {"cleared_looks": 3, "cleared_backwards": 3}, {"cleared_looks": 2}, "train.py:9"),
        (
            "NU19",
            {"cleared_looks": 3, "cleared_backwards": 3, "cleared_at": "train.py:5"},
            {},
            "train.py:5",
        ),
        ("NU08", {"without_gradient": 90, "trainable": 1000}, {"trainable": 1000}, "train.py:9"),
        ("NU08", {"without_gradient": 90, "trainable": 90}, {"trainable": 90}, "train.py:7"),
    ],
)
def test_a_habit_is_found_at_its_line(tmp_path, id, fields, near, site):
    told = found(trained(tmp_path / "fault", [fields] * 3))
    assert told.keys() == {id} and told[id].site == site
    if id not in ("NU16", "NU19"):  # which count their looks themselves
        assert found(trained(tmp_path / "once", [{}, fields])) == {}
    assert found(trained(tmp_path / "gone", [fields, fields, fields, {}])) == {}
    assert found(trained(tmp_path / "near", [near] * 3)) == {}


@pytest.mark.parametrize(
    ("looks", "of_one_class", "in_turn", "said"),
    [
        (5, 5, [0, 1, 2], True),
        (9, 9, [0, 1], True),  # of two classes
        (9, 9, [0, 1, 0, 1], False),  # which take turns, as real and made up ones do
        (9, 9, [3], False),  # that nearly all of the data have
        (9, 5, [0, 1, 2], False),
        (3, 3, [0, 1, 2], False),
    ],
)
def test_batches_of_one_class(tmp_path, looks, of_one_class, in_turn, said):
    seen = {
        "class_looks": looks,
        "one_class_looks": of_one_class,
        "one_class_in_turn": in_turn,
    }
    loader = {"dataloader": {"site": "train.py:5", "sampler": "SequentialSampler"}}
    told = found(trained(tmp_path / "loader", [seen, {}], loader))
    assert told.keys() == ({"NU22"} if said else set())
    if said:
        assert told["NU22"].site == "train.py:5" and "shuffle=True" in told["NU22"].fix
        by_hand = found(trained(tmp_path / "by hand", [seen]))["NU22"]
        assert by_hand.site == "train.py:9" and "shuffle=True" not in by_hand.fix


@pytest.mark.parametrize(
    ("scale", "calls", "said"), [(65536, 60, True), (1, 60, False), (8, 0, False)]
)
def test_gradients_clipped_while_they_are_scaled(tmp_path, scale, calls, said):
    clip = {"clip": {"max_norm": 1.0, "site": "train.py:12"}}
    told = found(trained(tmp_path, [{"clips_scaled": calls}], clip, loss_scale=scale))
    assert told.keys() == ({"NU05"} if said else set())
    assert not said or (told["NU05"].site, told["NU05"].severity) == ("train.py:12", "high")


@pytest.mark.parametrize(
    ("calls", "late", "said"), [(60, 60, True), (120, 60, False), (8, 8, False)]
)
def test_gradients_clipped_after_their_update(tmp_path, calls, late, said):
    clip = {"clip": {"max_norm": 1.0, "site": "train.py:12"}}
    told = found(trained(tmp_path, [{"clips": calls, "clips_late": late}], clip))
    assert told.keys() == ({"NU05"} if said else set())
    assert not said or told["NU05"].site == "train.py:12"


def test_the_line_that_clips_late_is_told(tmp_path):
    looks = [{"clips": 60, "clips_late": 60, "clips_late_at": "train.py:31"}]
    assert found(trained(tmp_path, looks, {}))["NU05"].site == "train.py:31"


@pytest.mark.parametrize(
    ("met", "values", "optimizer_ms", "said"),
    [(2, 900, 30, True), (500, 900, 30, False), (2, 300, 30, False), (2, 900, 4, False)],
)
def test_a_table_of_which_few_rows_are_met(tmp_path, met, values, optimizer_ms, said):
    table = {
        "table": "users.weight",
        "table_rows": 100_000,
        "table_values": values,
        "table_rows_looked_at": 1000,
        "table_rows_met": met,
    }
    told = found(trained(tmp_path, [table] * 3, optimizer=optimizer_ms))
    assert told.keys() == ({"HO11"} if said else set())
    if said:
        won = told["HO11"].recoverable_ms_per_step
        assert (
            won == pytest.approx(0.998 * 0.9 * 30, rel=0.02)
            and "users.weight" in told["HO11"].title
        )


@pytest.mark.parametrize("given", [1000, 200])
def test_a_teacher_that_was_trained_first_is_in_no_optimizer_any_more(tmp_path, given):
    before = {**OPTIMIZER, "all_parameters": given, "parameters": given}
    model = {"class": "Net", "trainable": 1000, "parameters": 1000, "roots": ["Net"]}
    build = trained(tmp_path, hello={"optimizer": before, "model": model})
    after = {**OPTIMIZER, "all_parameters": 100, "parameters": 100}
    build.event("hello_update", rank=0, pid=1, optimizer=after)
    assert found(build).keys() == (set() if given == 1000 else {"NU08"})


def test_a_loss_that_was_infinite_and_is_not_read_at_the_end(tmp_path):
    build = trained(tmp_path)
    build.step(0, loss=float("inf"), flags=wire.F_NONFINITE, forward=8, backward=16, optimizer=4)
    for loss in (2.0, float("nan")):
        build.step(0, loss=loss, forward=8, backward=16, optimizer=4, optimizer_steps=1)
    assert "finite again since" in found(build)["NU01"].title


ZEROS = {"gradients_looked_at": 900, "gradients_not_zero": 0, "trainable": 900}


@pytest.mark.parametrize(
    ("clip", "weights_rms", "site", "says"),
    [
        ({}, 0.0, "train.py:9", "of two factors, as in LoRA"),
        ({}, 0.1, "train.py:9", "look at the activations"),
        ({"max_norm": 0.0, "site": "train.py:8"}, 0.1, "train.py:8", "a max_norm above 0"),
        ({"max_norm": 1.0, "site": "train.py:8"}, 0.1, "train.py:9", "look at the activations"),
    ],
)
def test_gradients_of_zero_by_what_made_them(tmp_path, clip, weights_rms, site, says):
    looks = [{**ZEROS, "weights_rms": weights_rms}] * 4
    told = found(trained(tmp_path, looks, {"clip": clip}))
    assert told.keys() == {"NU13"}, "weights of zero from the first look on have not vanished"
    assert told["NU13"].site == site and says in told["NU13"].fix


def test_gradients_that_are_all_zero_whatever_else_the_looks_found(tmp_path):
    """A suspicion that is confirmed begins the count of looks anew."""
    confirmed = {**ZEROS, "alike": 1, "zero_gradient": 900, "zero_gradient_looks": 3}
    told = found(trained(tmp_path, [{**confirmed, "zero_gradient_names": ["body.weight"]}]))
    assert told["NU13"].severity == "high" and "all gradients are zero" in told["NU13"].title


@pytest.mark.parametrize(
    ("low_steps", "low", "severity"),
    [(200, 1e-8, "medium"), (100, 1e-8, None), (200, 1e-6, None), (200, 1e-12, "high")],
)
def test_a_rate_that_is_as_good_as_zero_for_half_of_the_run(tmp_path, low_steps, low, severity):
    build = trained(tmp_path, steps=300 - low_steps)
    for _ in range(low_steps):
        build.step(0, loss=2.0, optimizer_steps=1, forward=8, backward=16, optimizer=4, lr=low)
    told = found(build).get("NU06")
    assert (told.severity if told else None) == severity


def test_a_weight_that_a_loop_without_optimizer_forgets(tmp_path):
    fields = {"graded": 1000, "stray": 300, "stray_looks": 3, "stray_names": ["a tensor of 300"]}
    told = found(trained(tmp_path, [fields] * 3, {"optimizer": {}}))["NU08"]
    assert told.site == "train.py:9" and told.fix.startswith(
        "at train.py:9: update it as the others"
    )


def test_one_of_several_optimizers_without_any_gradient(tmp_path):
    build = trained(tmp_path)
    build.event(
        "no_gradient",
        rank=0,
        pid=1,
        step=60,
        looks=3,
        optimizer="SGD",
        values=136,
        names=["head.weight"],
        at="train.py:9",
    )
    (told,) = found(build).values()
    assert (told.id, told.site, told.severity) == ("NU08", "train.py:9", "medium")
    assert "SGD updates nothing" in told.title and "head.weight" in told.title


@pytest.mark.parametrize(("step", "site"), [(100, "train.py:30"), (90, None)])
def test_the_line_where_a_loss_stopped_being_finite(tmp_path, step, site):
    build = trained(tmp_path, steps=100)
    build.step(0, loss=float("nan"), flags=wire.F_NONFINITE, forward=8, backward=16, optimizer=4)
    build.event("nonfinite", rank=0, pid=1, step=100, loss="nan")
    build.event(
        "nan_origin",
        rank=0,
        pid=1,
        step=100,
        watched=False,
        direction="forward",
        how="graph",
        operation="div",
        layer="loss",
    )
    build.event("nan_place", rank=0, pid=1, step=step, operation="div", site="train.py:30")
    assert found(build)["NU01"].site == site


def test_a_nan_that_was_given_has_the_line_that_is_likeliest_to_make_one(tmp_path):
    build = trained(tmp_path, steps=100)
    build.step(0, loss=float("nan"), flags=wire.F_NONFINITE, forward=8, backward=16, optimizer=4)
    build.event("nonfinite", rank=0, pid=1, step=100, loss="nan")
    origin = {"watched": False, "direction": "input", "how": "graph", "layer": "first"}
    build.event("nan_origin", rank=0, pid=1, step=100, operation="addmm", **origin)
    suspect = {"suspect": "std", "suspect_at": "data.py:9"}
    place = {"operation": "addmm", "site": "train.py:30", **suspect}
    build.event("nan_place", rank=0, pid=1, step=100, **place)
    given = found(build)["NU01"]
    assert given.site == "data.py:9"
    assert (
        "of what goes to train.py:30 data.py:9 is the likeliest to make one, by std"
        in given.evidence
    )
    assert "look at data.py:9 first" in given.fix and "add an epsilon" in given.fix


def test_a_nan_of_a_data_set_has_the_line_that_fills_it(tmp_path):
    build = trained(tmp_path, steps=100)
    build.step(0, loss=float("nan"), flags=wire.F_NONFINITE, forward=8, backward=16, optimizer=4)
    build.event("nonfinite", rank=0, pid=1, step=100, loss="nan")
    origin = {"watched": False, "direction": "input", "how": "graph", "layer": "loss"}
    none_known = {"between": ["", ""]}
    build.event("nan_origin", rank=0, pid=1, step=100, operation="addmm", **origin, **none_known)
    held = {"suspect_at": "data.py:9", "held_in": "Prices.returns"}
    build.event("nan_place", rank=0, pid=1, step=100, operation="addmm", site="train.py:30", **held)
    given = found(build)["NU01"]
    assert given.site == "data.py:9"
    assert "`Prices.returns` of the data set holds values that are not finite" in given.evidence
    assert "data.py:9 is the likeliest to have put them there" in given.evidence
    assert given.title.endswith("NaN goes into addmm")
    assert "look at data.py:9 first" in given.fix


@pytest.mark.parametrize("has_place", [False, True])
def test_a_nan_that_the_script_writes(tmp_path, has_place):
    """Where the step after it goes another way, the graph has no place of it."""
    build = trained(tmp_path, steps=100)
    build.step(0, loss=float("nan"), flags=wire.F_NONFINITE, forward=8, backward=16, optimizer=4)
    build.event("nonfinite", rank=0, pid=1, step=100, loss="nan")
    origin = {"watched": False, "direction": "input", "how": "graph", "layer": "loss"}
    build.event("nan_origin", rank=0, pid=1, step=100, written_at="train.py:50", **origin)
    if has_place:
        build.event("nan_place", rank=0, pid=1, step=100, operation="mul", site="train.py:30")
    given = found(build)["NU01"]
    assert given.site == ("train.py:30" if has_place else "train.py:50")
    assert ("train.py:50 alone writes a NaN" in given.evidence) is not has_place


def test_what_a_fourth_look_finds_besides_does_not_hide_what_all_found(tmp_path):
    """The looks are as they were but for a tensor that is now known to have no gradient at all."""
    build = trained(tmp_path, steps=150)
    without = {"without_gradient": 800, "without_gradient_names": ["body.weight"]}
    for at, step in enumerate((20, 40, 60, 100)):
        fields = {"step": step, "alike": at % 3 + 1, **ZEROS, **without}
        if step == 100:
            fields |= {"zero_gradient": 100, "zero_gradient_names": ["head.bias"]}
        build.event("checkup", rank=0, pid=1, zero_gradient_looks=3, **fields)
    zero = found(build)["NU13"]
    assert zero.severity == "high" and "nothing is learnt" in zero.title
    assert zero.absorbed == ("NU08",)


@pytest.mark.parametrize(
    ("took_ms", "severity", "recoverable_ms", "interval_ms"),
    [
        ([6.0, 4.0, 5.0], "medium", 5.0, None),
        ([6.0, 4.0, 5.0, 5.0, 5.0, 7.0], "medium", 5.0, (4.0, 7.0)),
        ([1.0, 1.1, 1.2], "info", 1.1, None),
        ([], "medium", None, None),
    ],
)
def test_a_backward_that_trains_another_network_in_vain(
    tmp_path, took_ms, severity, recoverable_ms, interval_ms
):
    build = trained(tmp_path)
    event = {
        "step": 62,
        "looks": 3,
        "optimizer": "Adam",
        "values": 4321,
        "names": ["0.weight", None],
        "took_ms": took_ms,
        "backward_at": "train.py:9",
    }
    build.event("undetached", rank=0, pid=1, **event)
    (finding,) = [one for one in evaluate(build.open()) if one.id == "CE14"]
    assert finding.severity == severity
    assert finding.recoverable_ms_per_step == recoverable_ms
    assert finding.interval_ms_per_step == interval_ms
    assert finding.site == "train.py:9"
    build.event("undetached", rank=0, pid=1, **{**event, "made_at": "train.py:8"})
    (finding,) = [one for one in evaluate(build.open()) if one.id == "CE14"]
    assert finding.site == "train.py:8" and ".detach()" in finding.fix
    build.event("undetached", rank=0, pid=1, **{**event, "is_needed_too": True})
    (finding,) = [one for one in evaluate(build.open()) if one.id == "CE14"]
    assert "real samples" in finding.fix and ".detach()" not in finding.fix


DRAWS = {"drawn_steps": 20, "drawn_tokens": 40, "drawn_at": "train.py:5"}


@pytest.mark.parametrize(
    ("drawn_ms", "read_again_ms", "severity", "recoverable_ms"),
    [
        ([90.0] * 8, [60.0, 70.0, 80.0, 70.0, 70.0, 70.0, 70.0, 70.0], "high", 28.0),
        ([90.0] * 8, [10.0] * 8, "medium", 4.0),
        ([20.0] * 8, [30.0] * 8, "medium", 7.2),  # no more than nine tenths of it
        ([90.0] * 8, [5.0, 5.0, 5.0, 5.0, 40.0, 40.0, 40.0, 40.0], None, None),
        ([90.0] * 8, [-3.0] * 8, None, None),
        ([90.0] * 3, [80.0] * 3, None, None),
    ],
)
def test_texts_that_are_drawn_without_a_cache(
    tmp_path, drawn_ms, read_again_ms, severity, recoverable_ms
):
    draws = {"drawn_ms": drawn_ms, "read_again_ms": read_again_ms, **DRAWS}
    finding = found(trained(tmp_path, [draws, {}])).get("CE15")
    assert (finding.severity if finding else None) == severity
    if finding:
        assert finding.recoverable_ms_per_step == pytest.approx(recoverable_ms)
        assert finding.site == "train.py:5"
        low, high = finding.interval_ms_per_step
        assert 0 <= low <= recoverable_ms <= high
