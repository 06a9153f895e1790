"""Loops that ask their model for actions and let a world answer: what of that is host code."""

import pytest
from analysis_support import Builder

from gputop_analysis.findings import evaluate

LOOP = ("train.py:90 <module>", "train.py:80 run", "loop train.py:40 gather")
UPDATE = ("train.py:90 <module>", "train.py:81 run", "train.py:60 update")


def sampled(path, count, inside="", code=""):
    line, _, function = path[-1].rpartition(" ")
    return {
        "site": line,
        "function": function,
        "path": list(path),
        "inside": inside,
        "code": code,
        "count": count,
    }


def with_rollouts(path, other, rollout_every=12, steps=600):
    """Every so many steps the policy acts first, 20 ms of forwards and 60 ms between them."""
    build = Builder(path)
    build.hello()
    for step in range(steps):
        acts = step % rollout_every == 0
        build.step(forward=3.0 + 20.0 * acts, backward=5.0, optimizer=1.0, other=0.5 + 60.0 * acts)
    inside = "torch/nn/modules/linear.py:134 forward"
    for phase, samples in {
        "forward": [sampled(UPDATE, 60, inside)],
        "backward": [sampled(UPDATE, 80, "torch/autograd/graph.py:979 _engine_run_backward")],
        "eval": [sampled((*LOOP, "train.py:42 gather"), 40, inside)],
        "other": other,
    }.items():
        total = sum(sample["count"] for sample in samples)
        build.event("stacks", rank=0, phase=phase, period_ms=50, total=total, samples=samples)
    return {one.id: one for one in evaluate(build.open())}


def test_the_world_of_a_rollout_as_a_whole_is_an_info(tmp_path):
    """Its parts are spread below the line that lets it answer."""
    parts = [(*LOOP, "train.py:44 gather", f"world.py:{line} step") for line in range(20, 32)]
    found = with_rollouts(tmp_path / "r", [sampled(part, 8) for part in parts])
    assert found["HO15"].severity == "info" and "every 12th step" in found["HO15"].title
    assert all(one.severity == "info" for one in found.values())


def test_a_world_in_a_process_of_its_own_is_waited_for(tmp_path):
    recv = (*LOOP, "train.py:44 gather", "world.py:30 step")
    found = with_rollouts(tmp_path / "r", [sampled(recv, 90, "connection.py:395 _recv")])
    assert all(one.severity == "info" for one in found.values())


def test_a_line_of_the_world_that_takes_a_tenth_of_the_time_is_named(tmp_path):
    parts = [(*LOOP, "train.py:44 gather", f"world.py:{line} step") for line in range(20, 32)]
    heavy = sampled((*LOOP, "train.py:45 gather", "log.py:7 note"), 70)
    host = with_rollouts(tmp_path / "r", [heavy, *(sampled(part, 8) for part in parts)])["HO06"]
    assert (host.severity, host.site) == ("medium", "log.py:7 note")
    per_step_ms = 0.5 + 60 / 12
    assert host.recoverable_ms_per_step == pytest.approx(per_step_ms * 70 / 166, rel=0.05)


def test_an_evaluation_of_its_own_is_no_rollout(tmp_path):
    """Its time is booked as such, and what is done beside it is the script's."""
    build = Builder(tmp_path / "r")
    build.hello()
    for step in range(600):
        there = step % 12 == 0
        build.step(forward=3.0, backward=5.0, other=0.5 + 60.0 * there, eval=40.0 * there)
    line = sampled((*LOOP, "train.py:44 gather"), 90)
    asked = sampled((*LOOP, "train.py:42 gather"), 40, "torch/nn/modules/linear.py:134 forward")
    trained = sampled(UPDATE, 60, "torch/nn/modules/linear.py:134 forward")
    for phase, sample in (("other", line), ("eval", asked), ("forward", trained)):
        build.event("stacks", rank=0, phase=phase, period_ms=5, total=1, samples=[sample])
    found = {one.id: one for one in evaluate(build.open())}
    assert found["HO06"].severity != "info" and found["HO06"].site == "train.py:44 gather"


def test_rollouts_that_ask_parts_of_the_policy_are_no_stall(tmp_path):
    """What ``act`` calls is in no phase of its own; the line with most samples of host code is one
    of the training itself.
    """
    build = Builder(tmp_path / "r")
    build.hello()
    for step in range(600):
        build.step(forward=3.0, backward=5.0, optimizer=1.0, other=0.5 + 60.0 * (step % 12 == 0))
    inside = "torch/nn/modules/linear.py:134 forward"
    training = [sampled((*UPDATE[:-1], f"train.py:{line} update"), 6) for line in range(50, 54)]
    asking = sampled((*LOOP, "train.py:42 gather", "policy.py:7 act"), 20, inside)
    backward = [sampled(UPDATE, 80, "torch/autograd/graph.py:979 _engine_run_backward")]
    for phase, samples in {"backward": backward, "other": [asking, *training]}.items():
        build.event("stacks", rank=0, phase=phase, period_ms=50, samples=samples)
    stall = {one.id: one for one in evaluate(build.open())}["HO15"]
    assert stall.severity == "info"


SOLVES = ("loop train.py:40 <module>", "train.py:44 <module>", "loop ode.py:10 solve")


def solving(path, other):
    """A loop whose forward is a solver's, which calls the model again and again."""
    build = Builder(path)
    build.hello()
    for _ in range(200):
        build.step(forward=8.0, backward=9.0, optimizer=1.0, other=16.0)
    inside = "torch/nn/modules/linear.py:134 forward"
    ways = ("ode.py:12 solve", "ode.py:20 advance", "train.py:9 forward")
    updated = sampled(
        (*SOLVES[:1], "train.py:46 <module>"),
        40,
        "torch/autograd/graph.py:979 _engine_run_backward",
    )
    for phase, samples in {
        "forward": [sampled((*SOLVES, *ways), 40, inside)],
        "backward": [updated],
        "other": other,
    }.items():
        total = sum(sample["count"] for sample in samples)
        build.event("stacks", rank=0, phase=phase, period_ms=50, total=total, samples=samples)
    return {one.id: one for one in evaluate(build.open())}


def test_what_a_solver_does_around_the_model_is_no_host_code(tmp_path):
    steps = [(*SOLVES, "ode.py:12 solve", f"ode.py:{line} advance") for line in range(20, 32)]
    found = solving(tmp_path / "r", [sampled(part, 8, code="t = t0 + a * dt") for part in steps])
    assert all(one.severity == "info" for one in found.values())


def test_host_code_inside_a_solver_that_one_line_holds_is(tmp_path):
    heavy = sampled((*SOLVES, "ode.py:12 solve", "ode.py:31 advance"), 90, code="log.append(dt)")
    host = solving(tmp_path / "r", [heavy])["HO06"]
    assert host.severity == "high" and host.site == "ode.py:31 advance"


@pytest.mark.parametrize("asks_model", [True, False])
def test_a_policy_that_is_asked_with_gradients_on_is_no_stall(tmp_path, asks_model):
    """An episode before every 20 updates, whose forwards are not in ``no_grad``: its time is the
    forward's. A line inside the model that stalls as often is told.
    """
    build = Builder(tmp_path / "r")
    build.hello()
    for step in range(600):
        build.step(forward=1.0 + 40.0 * (step % 20 == 0), backward=2.0, optimizer=1.0, other=0.5)
    inside = "torch/nn/modules/linear.py:134 forward"
    loop = ("train.py:90 <module>", "train.py:80 run")
    act = (*loop, "loop train.py:20 run", "train.py:21 run", "train.py:5 forward")
    stall = (*loop, "train.py:60 update", "train.py:4 forward")
    updates = sampled((*loop, "train.py:60 update", "train.py:5 forward"), 12, inside)
    slow = sampled(act, 60, inside) if asks_model else sampled(stall, 60, "", "time.sleep(0.04)")
    back = sampled((*loop, "train.py:61 update"), 40, "torch/autograd/graph.py:9 _engine_run")
    for phase, samples in {"forward": [slow, updates], "backward": [back]}.items():
        total = sum(sample["count"] for sample in samples)
        build.event("stacks", rank=0, phase=phase, period_ms=50, total=total, samples=samples)
    stalls = {one.id: one for one in evaluate(build.open())}["HO15"]
    assert (stalls.severity == "info") is asks_model
    assert stalls.site == ("train.py:5 forward" if asks_model else "train.py:4 forward")


@pytest.mark.parametrize(("acts", "severity"), [(True, "info"), (False, "high")])
def test_what_a_package_does_to_draw_texts_to_train_on(tmp_path, acts, severity):
    build, draws, trains = Builder(tmp_path), ("train.py:17 <module>",), ("train.py:30 <module>",)
    build.hello(acts=acts)
    for _ in range(200):
        build.step(forward=20.0, backward=5.0, optimizer=1.0, other=12.0)
    attention = "transformers/integrations/sdpa_attention.py:182 sdpa_attention_forward"
    for phase, samples in {
        "eval": [sampled(draws, 50, attention)],
        "forward": [sampled(trains, 10, attention)],
        "backward": [sampled(trains, 60, "torch/autograd/graph.py:979 _engine_run_backward")],
        "other": [sampled(draws, 60, "transformers/generation/utils.py:3277 _sample")],
    }.items():
        build.event("stacks", rank=0, phase=phase, period_ms=50, total=60, samples=samples)
    host = {one.id: one for one in evaluate(build.open())}["HO06"]
    assert host.severity == severity
