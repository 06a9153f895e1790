"""Findings that trainings of other shapes than the first ones were missing, or had wrongly: built
records of them.
"""

from __future__ import annotations

import numpy as np
import pytest
from analysis_support import Builder, pack

from gputop_analysis.findings import evaluate
from gputop_analysis.findings.numerics.loss_spikes import Reasons, after_a_jump
from gputop_analysis.findings.sites import top_site
from gputop_analysis.view import RunView
from gputop_analysis.waits import waits

SECOND = 10**9


def found(build: Builder):
    return {one.id: one for one in evaluate(build.open())}


def of_ranks(path, before_ms, buffer_bytes=512, steps=200):
    """Two ranks of DDP that take ``before_ms`` before forward; the early one waits there where
    buffers are sent.
    """
    build = Builder(path)
    for rank, own in enumerate(before_ms):
        build.hello(rank, world_size=2, model={"class": "Net", "buffer_bytes": buffer_bytes})
        build.event("ddp", rank=rank, broadcast_buffers=True)
        waited = max(before_ms) - own if buffer_bytes else 0.0
        random = np.random.default_rng(rank)
        for _ in range(steps):
            build.step(
                rank,
                data=0.2,
                other=own,
                forward=4.0 + waited + 0.2 * random.random(),
                backward=8.0,
                wait_ms=1.0,
            )
    return build


@pytest.mark.parametrize("slow", [0, 1])
def test_a_rank_that_comes_late_to_the_broadcast_of_buffers_is_the_slow_one(tmp_path, slow):
    straggler = found(
        of_ranks(tmp_path / "r", [13.0 if rank == slow else 1.0 for rank in range(2)])
    )["CR04"]
    assert straggler.rank == slow and straggler.recoverable_ms_per_step == pytest.approx(
        12.0, rel=0.05
    )


def test_ranks_that_come_together_wait_for_no_buffers(tmp_path):
    seen = waits(RunView(of_ranks(tmp_path / "r", [1.0, 1.0]).open()))
    assert seen is not None and seen.ms.mean() == pytest.approx(1.0, abs=0.1)
    assert "CR04" not in found(of_ranks(tmp_path / "s", [1.0, 1.0]))


def test_two_ddp_modules_tell_of_the_same_step(tmp_path):
    build = Builder(tmp_path / "r")
    for rank in range(2):
        build.hello(rank, world_size=2)
        for step in range(100):
            build.step(rank, forward=4.0, backward=8.0, wait_ms=9.0 - 8 * rank)
            other = {"wait_ns": 10**6, "backward_compute_ns": 10**6}
            row = pack("comm", t_end_ns=build.clock[rank], step=step, **other)
            build.writer.append_rank("comm", rank, row)  # of the other module
    both = waits(RunView(build.open()))
    assert both is not None
    assert both.ms.mean(axis=0).tolist() == pytest.approx([9.0, 1.0])


def vanished(path, message, goodbye=False):
    build = Builder(path)
    for rank in range(2):
        build.hello(rank, world_size=2)
        build.steps(60, rank, forward=6.0, backward=12.0)
    now = build.clock[0]
    build.event(
        "exception", t_ns=now + 1, rank=0, **{"class": "RuntimeError"}, message=message, step=60
    )
    build.event("goodbye", t_ns=now + 2, rank=0)
    if goodbye:
        build.event("goodbye", t_ns=now + 2, rank=1)
    build.event("rank_lost", t_ns=now + 3, rank=1, reason="process ended", step=59)
    build.end(exit_code=1)
    return found(build)["HC06"]


def test_a_rank_that_vanished_is_the_first_and_not_the_one_that_misses_it(tmp_path):
    reset = (
        "[gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:54427: Connection reset by peer"
    )
    assert vanished(tmp_path / "a", reset).rank == 1
    assert "vanished" in vanished(tmp_path / "b", reset).title
    assert vanished(tmp_path / "c", "the labels are out of range").rank == 0
    assert vanished(tmp_path / "d", reset, goodbye=True).rank == 0


@pytest.mark.parametrize(("ranks", "says"), [(1, "a person"), (2, "another rank")])
def test_what_ended_a_run_by_sigterm_may_be_asked(tmp_path, ranks, says):
    build = Builder(tmp_path / "r")
    for rank in range(ranks):
        build.hello(rank, world_size=ranks)
        build.steps(40, rank, forward=6.0)
    build.end(exit_code=143)
    assert says in found(build)["HC09"].fix and "no setting" not in found(build)["HC09"].fix


def in_optimizer(path, given, others=(), roots=("Net",), module="torch", graded=None, **more):
    build = Builder(path)
    optimizer = {"class": "AdamW", "module": module, "parameters": given, "others": list(others)}
    optimizer |= more
    build.hello(
        0, model={"class": "Net", "trainable": 1000, "roots": list(roots)}, optimizer=optimizer
    )
    build.steps(60, forward=6.0, backward=12.0)
    if graded is not None:
        build.event("checkup", rank=0, pid=1, step=20, alike=1, graded=graded)
    return found(build).get("NU08")


def test_parameters_that_no_optimizer_has(tmp_path):
    left_out = in_optimizer(tmp_path / "head", 200)
    assert left_out is not None and left_out.severity == "high" and "80 %" in left_out.title
    assert in_optimizer(tmp_path / "all", 1000) is None
    assert in_optimizer(tmp_path / "two", 200, others=["SGD"]) is None
    both = in_optimizer(tmp_path / "both", 200, others=["SGD"], all_parameters=600)
    assert both is not None and "40 %" in both.title and "AdamW and SGD have 600" in both.evidence
    assert in_optimizer(tmp_path / "whole", 200, others=["SGD"], all_parameters=1000) is None
    assert in_optimizer(tmp_path / "beside", 200, roots=("Net", "Teacher")) is None
    assert in_optimizer(tmp_path / "foreign", 200, module="deepspeed") is None
    assert in_optimizer(tmp_path / "target network", 500, graded=500) is None
    assert in_optimizer(tmp_path / "forgotten", 500, graded=900) is not None


@pytest.mark.parametrize(
    ("hello", "every", "severity"),
    [
        ({"libraries": {"gymnasium": "1.0"}}, 1, None),
        ({"libraries": {"gymnasium": "1.0"}}, 80, None),
        ({"acts": True}, 80, None),
        ({"libraries": {"transformers": "1.0"}, "acts": False}, 1, "high"),
    ],
)
def test_a_policy_that_acts_is_no_evaluation(tmp_path, hello, every, severity):
    build = Builder(tmp_path / "r")
    build.hello(0, **hello)
    for step in range(200):
        build.step(0, forward=6.0, backward=6.0, eval=20.0 * every * (step % every == 0))
    share = found(build).get("HO08")
    assert (share.severity if share else None) == severity


def scattered(path, after):
    """A loss that jumps at step 250, and scatters by ``after`` from there on."""
    random, build = np.random.default_rng(1), Builder(path)
    build.hello(0)
    for step in range(600):
        jump = (
            0.8 if step == 250 else abs((after if step > 250 else 0.02) * random.standard_normal())
        )
        build.step(0, forward=5, backward=9, loss=1 + jump, grad_norm=float("nan"))
    return found(build)["NU02"]


def test_evaluations_are_counted_from_one_to_the_next(tmp_path):
    """And not by what the run did before the first and after the last."""
    build = Builder(tmp_path / "r")
    build.hello()
    for step in range(390):
        build.step(forward=10.0, eval=80.0 if step >= 100 and step % 20 == 0 else 0.0)
    assert "every 200 steps instead of every 20" in found(build)["HO08"].fix


def test_a_jump_from_which_on_the_loss_scatters_more_is_no_event(tmp_path):
    assert scattered(tmp_path / "batch", after=0.02).severity == "medium"
    assert scattered(tmp_path / "rewards", after=0.5).severity == "info"


def test_an_evaluation_is_placed_in_the_loop_that_asks_for_it(tmp_path):
    build = Builder(tmp_path / "r")
    build.hello(0)
    build.steps(60, forward=6.0, eval=6.0)
    main, model = "train.py:90 <module>", "model.py:7 forward"
    trained = {
        "site": "model.py:7",
        "function": "forward",
        "count": 30,
        "path": [main, "train.py:40 fit", model],
    }
    asked = {**trained, "path": [main, "train.py:48 fit", "train.py:20 evaluate", model]}
    build.event("stacks", rank=0, phase="forward", samples=[trained])
    build.event("stacks", rank=0, phase="eval", samples=[asked])
    site = top_site(RunView(build.open()), "eval", 0)
    assert site is not None and site.site == "train.py:48 fit"


def in_a_loop(path, models_run=False, looped=True):
    """Host code spread over three lines of the loop at line 60, which is inside the training's at
    line 40.
    """
    build = Builder(path)
    build.hello(0)
    build.steps(200, forward=6.0, backward=9.0, other=3.0)
    outer, inner = ["loop train.py:40 fit"] * looped, ["loop train.py:60 fit"] * looped
    lines = [
        {
            "site": f"train.py:{line}",
            "function": "fit",
            "path": [*outer, *inner, f"train.py:{line} fit"],
            "count": 12,
        }
        for line in (61, 62, 63)
    ]
    build.event("stacks", rank=0, phase="other", samples=lines)
    called = {"site": "train.py:45", "function": "fit", "count": 30}
    within = [*outer, *(inner if models_run else ()), "train.py:45 fit"]
    build.event("stacks", rank=0, phase="forward", samples=[{**called, "path": within}])
    return found(build)["HO06"]


def test_the_lines_of_a_loop_are_one_place(tmp_path):
    host = in_a_loop(tmp_path / "loop")
    assert (host.severity, host.site) == ("medium", "train.py:60 fit")
    assert "in the loop at train.py:60 fit" in host.evidence


def test_a_loop_in_which_models_run_is_no_place(tmp_path):
    rollout = in_a_loop(tmp_path / "rollout", models_run=True)
    assert (rollout.severity, rollout.site) == ("info", None)


def test_lines_of_no_loop_are_no_place(tmp_path):
    spread = in_a_loop(tmp_path / "spread", looped=False)
    assert (spread.severity, spread.site) == ("info", None)


def test_a_line_that_runs_a_model_is_no_host_code(tmp_path):
    def place(path, code):
        build = Builder(path)
        build.hello(0)
        build.steps(200, forward=6.0, backward=9.0, other=6.0)
        line = {
            "site": "play.py:52",
            "function": "collect",
            "path": ["play.py:90 <module>", "loop play.py:51 collect", "play.py:52 collect"],
            "code": code,
            "count": 20,
        }
        build.event("stacks", rank=0, phase="other", samples=[line])
        inside = {**line, "inside": "torch/nn/modules/linear.py:134 forward"}
        build.event("stacks", rank=0, phase="eval", samples=[inside])
        return found(build).get("HO06")

    assert place(tmp_path / "policy", "logits = actor(torch.tensor(view))") is None
    read_out = place(tmp_path / "read", "rows = actor(view).tolist()")
    assert read_out is not None and read_out.site == "play.py:52 collect"


def test_an_evaluation_with_loops_is_placed_at_the_line_that_asks_for_it(tmp_path):
    build = Builder(tmp_path / "r")
    build.hello(0)
    build.steps(60, forward=6.0, eval=6.0)
    layers = ["loop model.py:7 forward", "model.py:8 forward"]
    trained = {"site": "model.py:8", "function": "forward", "count": 30}
    main = "loop train.py:9 <module>"
    asked = [main, "train.py:12 <module>", "loop train.py:3 evaluate", "train.py:4 evaluate"]
    fitted = [main, "loop train.py:14 <module>", "train.py:15 <module>"]
    build.event("stacks", rank=0, phase="forward", samples=[{**trained, "path": fitted + layers}])
    build.event("stacks", rank=0, phase="eval", samples=[{**trained, "path": asked + layers}])
    site = top_site(RunView(build.open()), "eval", 0)
    assert site is not None and site.site == "train.py:12 <module>"


@pytest.mark.parametrize(("forward", "severity"), [(6.0, "medium"), (0.2, "info")])
def test_where_the_model_runs_outside_of_its_forward_many_lines_are_no_host_code(
    tmp_path, forward, severity
):
    build = Builder(tmp_path / "r")
    build.hello(0)
    build.steps(200, forward=forward, backward=9.0, other=20.0)
    lines = [{"site": f"gcn.py:{at}", "function": "encode", "count": 6} for at in range(40, 50)]
    build.event("stacks", rank=0, phase="other", samples=lines)
    host = found(build)["HO06"]
    assert (host.severity, host.site) == (severity, None)


def test_a_drawn_action_is_no_host_code(tmp_path):
    def host(path, inside):
        build = Builder(path)
        build.hello(0)
        build.steps(200, forward=6.0, backward=9.0, other=6.0)
        line = {"site": "pg.py:47", "function": "get_action", "count": 30, "inside": inside}
        line["code"] = "return get_policy(obs).sample().item()"
        build.event("stacks", rank=0, phase="other", samples=[line])
        return found(build).get("HO06")

    assert host(tmp_path / "drawn", "torch/distributions/categorical.py:148 sample") is None
    assert host(tmp_path / "read", "torch/_tensor.py:1 item").site == "pg.py:47 get_action"


@pytest.mark.parametrize(("other", "severity"), [(9.0, "medium"), (4.0, "info")])
def test_two_lines_that_hold_most_together_are_named(tmp_path, other, severity):
    build = Builder(tmp_path / "r")
    build.hello(0)
    build.steps(200, forward=6.0, backward=9.0, other=other)
    lines = [
        {"site": f"dqn.py:{line}", "function": "dqn", "count": count}
        for line, count in ((72, 26), (73, 20), (80, 4), (81, 4))
    ]
    build.event("stacks", rank=0, phase="other", samples=lines)
    host = found(build)["HO06"]
    assert (host.severity, host.site) == (severity, "dqn.py:72 dqn")
    assert "and 37 % at dqn.py:73 dqn" in host.evidence


@pytest.mark.parametrize(
    ("inside", "code", "severity"),
    [
        ("lightning/pytorch/core/module.py:1137 backward", "trainer.fit(model)", "info"),
        ("pyro/infer/trace_elbo.py:157 loss_and_grads", "loss = svi.step(x, y)", "info"),
        ("xformers/ops.py:88 backward", "loss.backward()", "high"),  # of a layer, not of a loop
        ("torch/_tensor.py:647 backward", "step(batch)", "high"),
    ],
)
def test_what_a_package_does_that_calls_the_backward_is_its_own(tmp_path, inside, code, severity):
    build = Builder(tmp_path / "r")
    build.hello(0)
    build.steps(200, forward=6.0, other=5.0)
    call = {
        "site": "fit.py:62",
        "function": "<module>",
        "path": ["fit.py:62 <module>"],
        "count": 30,
    }
    build.event(
        "stacks", rank=0, phase="other", samples=[{**call, "inside": "fsspec/local.py:480 write"}]
    )
    build.event(
        "stacks", rank=0, phase="backward", samples=[{**call, "inside": inside, "code": code}]
    )
    assert found(build)["HO06"].severity == severity


def test_what_a_trainer_does_is_placed_where_it_is_called(tmp_path):
    build = Builder(tmp_path / "r")
    build.hello(0)
    for step in range(200):
        build.step(forward=6.0, backward=6.0, checkpoint=30.0 * (step % 10 == 9))
    path = ["fit.py:90 <module>", "fit.py:62 run"]
    call = {"site": "fit.py:62", "function": "run", "path": path, "count": 30}
    inside = {**call, "inside": "transformers/trainer.py:2552 train"}
    build.event("stacks", rank=0, phase="backward", samples=[inside])
    assert found(build)["HO07"].site == "fit.py:62 run"


@pytest.mark.parametrize(
    ("inside", "code", "is_host"),
    [
        ("gpytorch/kernels/kernel.py:43 sq_dist", "loss = -mll(m(x), y)", False),
        ("gpytorch/kernels/kernel.py:43 sq_dist", "plot(kernel(x))", True),
        ("albumentations/core/compose.py:9 apply", "loss = -mll(m(augment(x)), y)", True),
        ("monai/losses/dice.py:140 forward", "loss = criterion(outputs, labels)", True),
    ],
)
def test_what_a_package_of_networks_computes_for_a_loss_is_work(tmp_path, inside, code, is_host):
    build = Builder(tmp_path / "r")
    build.hello(0)
    build.steps(200, forward=6.0, other=5.0)
    line = {"site": "fit.py:62", "function": "fit", "path": ["fit.py:62 fit"], "code": code}
    other = {**line, "inside": inside, "count": 30}
    build.event("stacks", rank=0, phase="other", samples=[other])
    network = {"site": "fit.py:61", "path": ["fit.py:61 fit"], "count": 3}
    network["inside"] = "gpytorch/means/constant_mean.py:7 forward"
    build.event("stacks", rank=0, phase="forward", samples=[network])
    assert ("HO06" in found(build)) == is_host


@pytest.mark.parametrize(("callback", "severity"), [(20, "medium"), (4, "info")])
def test_a_callback_is_named_and_charged_without_the_trainers_own_part(
    tmp_path, callback, severity
):
    build = Builder(tmp_path / "r")
    build.hello(0)
    build.steps(200, forward=6.0, backward=6.0, other=8.0)
    fit = {"site": "fit.py:62", "function": "<module>", "path": ["fit.py:62 <module>"]}
    own = {**fit, "count": 20, "inside": "lightning/pytorch/loops/fit_loop.py:352 advance"}
    line = "watch.py:14 on_train_batch_end"
    asked = {**fit, "site": "watch.py:14", "path": [*fit["path"], "(lightning)", line]}
    asked |= {"function": "on_train_batch_end", "count": callback}
    build.event("stacks", rank=0, phase="other", samples=[own, asked])
    host = found(build)["HO06"]
    assert host.severity == severity
    if severity != "info":
        assert host.site == line and host.recoverable_ms_per_step == pytest.approx(4.0, rel=0.02)


@pytest.mark.parametrize(
    ("code", "is_asked"),
    [
        ('self.log("kind", error.item())', True),
        ("return super().training_step(model, batch)", False),
    ],
)
def test_what_a_hook_asks_its_trainer_for_is_the_users(tmp_path, code, is_asked):
    """A hundred calls of ``self.log`` lie inside the trainer, and are asked for by one line."""
    build = Builder(tmp_path / "r")
    build.hello(0)
    build.steps(200, forward=6.0, backward=6.0, other=8.0)
    line = "net.py:33 training_step"
    path = ["fit.py:62 <module>", "(lightning)", line]
    asked = {"site": "net.py:33", "function": "training_step", "path": path, "count": 60}
    asked |= {"inside": "lightning/fabric/utilities/apply_func.py:104 batch_to", "code": code}
    build.event("stacks", rank=0, phase="other", samples=[asked])
    host = found(build)["HO06"]
    assert (host.severity == "high", host.site == line) == (is_asked, is_asked)


@pytest.mark.parametrize(
    ("inside", "code", "host"),
    [
        ("torch/serialization.py:2128 load_tensor", "popular = torch.load(path)", True),
        ("torch/functional.py:1866 norm", "row.norm().item()", True),
        ("torch/functional.py:1866 norm", "float(row.norm())", True),
        ("torch/functional.py:1866 norm", "penalty = row.norm()", False),
        ("torch/functional.py:1866 norm", "penalty = row.norm().float()", False),
        ("torch/_tensor_str.py:184 __init__", "print(values)", True),
        ("torch/nn/modules/module.py:2160 _save_to_state_dict", "last = net.state_dict()", True),
        ("torch/nn/modules/module.py:1776 _wrapped_call_impl", "out = net(x)", False),
        ("", "loss = F.cross_entropy(scores, truth)", False),
        ("", "odds = torch.distributions.Categorical(logits=scores)", False),
        ("", "x = torch.tensor([weight(word) for word in text])", True),
        (
            "torch/nn/functional.py:3555 cross_entropy",
            "total += F.cross_entropy(x, y).item()",
            False,
        ),
    ],
)
def test_files_and_values_that_are_read_are_host_code(tmp_path, inside, code, host):
    build = Builder(tmp_path / "r")
    build.hello(0)
    build.steps(200, forward=6.0, backward=9.0, other=6.0)
    sample = {
        "site": "train.py:14",
        "function": "step",
        "inside": inside,
        "code": code,
        "count": 40,
    }
    build.event("stacks", rank=0, phase="other", samples=[sample])
    assert ("HO06" in found(build)) == host


def test_the_loader_of_an_evaluation_is_another_than_that_of_training(tmp_path):
    build = Builder(tmp_path / "r")
    loader = {
        "dataset": "list",
        "dataset_length": 4000,
        "batch_size": 8,
        "num_workers": 0,
        "loop": "hf.py:45",
    }
    build.hello(0, dataloader={**loader, "inside": ["transformers"]})
    build.steps(120, data=0.2, forward=5.0, other=3.0)
    evaluated = {
        **loader,
        "dataset_length": 80,
        "epochs": 20,
        "starts_ms": 900.0,
        "firsts_ms": 900.0,
    }
    build.event("loader", rank=0, **evaluated)
    assert "IN15" not in found(build)


# ---- what looks at gradients and graphs tell


def looked_at(path, steps=150, kind="checkup", times=4, **fields):
    build = Builder(path)
    build.hello(0)
    build.steps(steps, forward=6.0, backward=12.0)
    for at in range(times):
        build.event(kind, rank=0, pid=1, step=20 * (at + 1), **{"alike": at + 1, **fields})
    return build


def test_one_of_several_optimizers_is_never_cleared(tmp_path):
    build = looked_at(tmp_path, kind="uncleared", times=1, looks=3, optimizer="Adam", backwards=2)
    never = found(build)["NU11"]
    assert never.severity == "high" and "of Adam" in never.title


def test_a_layer_that_was_replaced_after_the_optimizer_was_made(tmp_path):
    fields = {"stray": 300, "stray_looks": 3, "graded": 1000, "without_gradient": 5000}
    finding = found(looked_at(tmp_path, stray_names=["head.weight"], **fields))["NU08"]
    assert finding.fix.startswith("make the optimizer after the model is complete")
    assert "holds 5,000 values that get no gradient" in finding.evidence


@pytest.mark.parametrize(
    ("stray", "stray_looks", "severity"), [(300, 3, "medium"), (300, 2, None), (5, 3, None)]
)
def test_gradients_for_nobody(tmp_path, stray, stray_looks, severity):
    fields = {"stray": stray, "stray_looks": stray_looks, "graded": 1000}
    nobody = found(looked_at(tmp_path, stray_names=["Teacher.weight"], **fields)).get("NU08")
    assert (nobody.severity if nobody else None) == severity
    assert nobody is None or "30 % of the gradients are for nobody: Teacher.weight" in nobody.title


def test_gradients_of_parameters_that_no_module_knows(tmp_path):
    fields = {"stray": 300, "stray_looks": 3, "graded": 1000, "stray_outside": 300}
    names = ["a tensor of 300"]
    build = looked_at(tmp_path, stray_names=names, stray_made_at="train.py:9", **fields)
    outside = found(build)["NU08"]
    assert outside.site == "train.py:9" and "a tensor of 300" in outside.title
    assert "keep them in an attribute of the module" in outside.fix


@pytest.mark.parametrize(
    ("thawed_at", "site", "advice"),
    [("train.py:30", "train.py:30", "add_param_group()"), (None, "train.py:20", "give them to")],
)
def test_gradients_of_a_part_that_its_models_optimizer_lacks(tmp_path, thawed_at, site, advice):
    lines = {"stray_optimizer_at": "train.py:20", "stray_thawed_at": thawed_at}
    fields = {"stray": 300, "stray_looks": 3, "graded": 1000, "stray_names": ["body.weight"]}
    left_out = found(looked_at(tmp_path, **fields, **lines))["NU08"]
    assert left_out.site == site
    assert advice in left_out.fix and "made at train.py:20" in left_out.fix


@pytest.mark.parametrize(
    ("more", "is_told"),
    [
        ({"stray_optimizer_at": "train.py:20"}, True),
        ({}, False),
        ({"stray_optimizer_at": "train.py:20", "stray_outside": 5}, False),
    ],
    ids=["a head", "no optimizer has the rest", "in no module"],
)
def test_few_gradients_are_told_where_the_rest_of_their_model_is_trained(tmp_path, more, is_told):
    fields = {
        "stray": 5,
        "stray_looks": 3,
        "graded": 1000,
        "stray_names": ["value.weight"],
    }
    left_out = found(looked_at(tmp_path, **fields, **more)).get("NU08")
    assert (left_out is not None) is is_told
    if left_out is not None:
        assert left_out.title == "gradients of 5 values are for nobody: value.weight"
        assert (left_out.site, left_out.severity) == ("train.py:20", "medium")


def test_a_part_without_gradient_has_the_line_that_cuts_the_graph(tmp_path):
    fields = {
        "without_gradient": 300,
        "without_gradient_names": ["body.weight"],
        "trainable": 1000,
    }
    lines = {"without_gradient_at": "net.py:40", "cut_at": "net.py:41"}
    missing = found(looked_at(tmp_path, alike=3, **fields, **lines))["NU08"]
    assert missing.site == "net.py:41" and "takes a value out of the graph" in missing.fix


@pytest.mark.parametrize(("missing", "site"), [(300, "net.py:52"), (20, "net.py:40")])
def test_a_tower_whose_results_are_gathered_without_a_graph(tmp_path, missing, site):
    fields = {
        "without_gradient": missing,
        "without_gradient_names": ["reader.weight"],
        "trainable": 1000,
    }
    lines = {"without_gradient_at": "net.py:40", "gathered_at": "net.py:52"}
    told = found(looked_at(tmp_path, alike=3, **fields, **lines))["NU08"]
    assert told.site == site and ("all_gather" in told.fix) == (site == "net.py:52")


@pytest.mark.parametrize(("at", "severity"), [("net.py:9", "medium"), (None, "info")])
def test_a_group_of_the_optimizer_that_is_frozen(tmp_path, at, severity):
    names = ["words.weight"]
    fields = {"frozen_group": 640, "frozen_group_names": names, "frozen_group_at": at}
    frozen = found(looked_at(tmp_path, trainable=1000, **fields))["NU08"]
    assert (frozen.severity, "words.weight" in frozen.title) == (severity, True)
    assert ("say freeze=False" in frozen.fix) is (at is not None)
    assert at is None or frozen.site == at


def test_an_optimizer_that_has_nothing_to_update(tmp_path):
    fields = {"frozen_group": 640, "frozen_whole": True, "frozen_group_at": "tune.py:40"}
    nothing = found(looked_at(tmp_path, **fields))["NU08"]
    assert (nothing.severity, nothing.site) == ("high", "tune.py:40")
    assert "nothing to update" in nothing.title


def test_weights_that_are_zero_still_have_the_line_that_makes_them(tmp_path):
    fields = {
        "zero_gradient": 300,
        "zero_gradient_names": ["body.weight"],
        "trainable": 1000,
    }
    zeroed = {"zero_weights": ["body.weight"], "zero_weights_at": "net.py:12"}
    looks = {"zero_gradient_looks": 3, "zero_gradient_at": "net.py:40"}
    dead = found(looked_at(tmp_path, **fields, **zeroed, **looks))["NU13"]
    assert dead.site == "net.py:12" and "begin body.weight at random values" in dead.fix


def test_gradients_of_an_optimizer_that_has_not_stepped(tmp_path):
    fields = {"stray": 300, "stray_looks": 3, "graded": 1000, "stray_names": ["critic.weight"]}
    nobody = found(looked_at(tmp_path / "waits", stray_waiting=300, **fields))["NU08"]
    assert "an optimizer has not stepped: 30 %" in nobody.title and "step()" in nobody.fix
    teacher = found(looked_at(tmp_path / "few", stray_waiting=100, **fields))["NU08"]
    assert "for nobody" in teacher.title


@pytest.mark.parametrize(("times", "is_told"), [(2, True), (1, False)])
def test_a_model_that_is_trained_in_eval_mode(tmp_path, times, is_told):
    build = looked_at(
        tmp_path,
        eval_mode="Net",
        eval_mode_parts=["Dropout"],
        eval_mode_after=40,
        eval_mode_looks=times,
    )
    assert ("NU14" in found(build)) == is_told


def test_a_model_that_was_in_eval_mode_from_the_beginning(tmp_path):
    fields = {"eval_mode": "Net", "eval_mode_parts": ["Dropout"], "eval_mode_looks": 2}
    told = found(looked_at(tmp_path, eval_mode_after=-1, eval_mode_at="train.py:8", **fields))
    assert "from the beginning" in told["NU14"].title and told["NU14"].site == "train.py:8"
    assert "train.py:8 leaves it in eval mode" in told["NU14"].fix


def test_a_whole_module_beside_the_model_is_told_however_small(tmp_path):
    fields = {"stray": 5, "stray_looks": 3, "graded": 1000, "stray_names": ["Linear.weight"]}
    told = found(looked_at(tmp_path, stray_apart="Linear", **fields))["NU08"]
    assert told.severity == "medium" and "make their module a part of the model" in told.fix


@pytest.mark.parametrize(("to", "words"), [(False, "still trained"), (True, "still frozen")])
def test_an_attribute_that_nothing_reads(tmp_path, to, words):
    fields = {"misspelt_values": 640, "misspelt_names": ["words.weight"]}
    lines = {"misspelt_at": "train.py:12"}
    build = looked_at(tmp_path, misspelt="require_grad", misspelt_to=to, **fields, **lines)
    told = found(build)["NU08"]
    assert words in told.title and f"requires_grad_({to})" in told.fix
    assert (told.site, told.severity) == ("train.py:12", "medium")


def test_a_schedule_of_updates_that_is_stepped_once_an_epoch(tmp_path):
    fields = {"rate_rarely": "OneCycleLR", "rate_stepped": 2, "rate_length": 600}
    told = found(looked_at(tmp_path, rate_stepped_at=["train.py:50"], **fields))["NU06"]
    assert "is stepped once in" in told.title and "2 steps of the 600" in told.evidence
    assert told.severity == "medium" and "after each optimizer.step()" in told.fix


def test_the_way_out_of_an_evaluation_that_forgets_the_training_mode(tmp_path):
    fields = {"eval_mode": "Net", "eval_mode_parts": ["Dropout"], "eval_mode_looks": 2}
    lines = {"eval_mode_at": "train.py:30", "eval_mode_left_at": "train.py:34"}
    left = found(looked_at(tmp_path, eval_mode_after=40, **fields, **lines))["NU14"]
    assert left.site == "train.py:34"
    assert "calls eval() at train.py:30" in left.fix and "train.py:34 is one without" in left.fix


@pytest.mark.parametrize(("times", "is_told"), [(2, True), (1, False)])
def test_a_model_that_is_evaluated_in_training_mode(tmp_path, times, is_told):
    build = looked_at(
        tmp_path,
        evaluated_in_training="Net",
        evaluated_in_training_parts=["BatchNorm1d", "Dropout"],
        evaluated_in_training_steps=times,
        evaluated_in_training_at="train.py:40",
    )
    told = found(build).get("NU21")
    assert (told is not None) == is_told
    if told is not None:
        assert told.site == "train.py:40" and "model.eval() before train.py:40" in told.fix


def test_what_normalises_each_sample_by_itself_gives_no_false_scores(tmp_path):
    """StarGAN draws pictures with instance norm: nothing of it is random or of the batch."""
    build = looked_at(
        tmp_path,
        evaluated_in_training="Generator",
        evaluated_in_training_parts=["InstanceNorm2d"],
        evaluated_in_training_steps=3,
        evaluated_in_training_at="solver.py:320",
    )
    told = found(build)["NU21"]
    assert told.severity == "info" and "normalises each sample by itself" in told.fix
    assert "scores" not in told.fix and "batch" not in told.fix + told.evidence


def test_a_copy_that_is_evaluated_in_training_mode(tmp_path):
    build = looked_at(
        tmp_path,
        evaluated_in_training="Net",
        evaluated_in_training_parts=["BatchNorm1d"],
        evaluated_in_training_steps=3,
        evaluated_in_training_at="train.py:40",
        evaluated_copy=True,
    )
    told = found(build)["NU21"]
    assert told.title.startswith("a copy of Net is evaluated in training mode")
    assert "the one that is trained was in eval mode" in told.evidence
    assert told.fix.startswith("call copy.eval() before train.py:40")


def test_a_train_of_the_models_own_may_set_eval_mode(tmp_path):
    fields = {"eval_mode": "Net", "eval_mode_parts": ["Dropout"], "eval_mode_looks": 2}
    lines = {"eval_mode_at": "train.py:30", "eval_mode_set_at": "net.py:9"}
    overridden = found(looked_at(tmp_path, eval_mode_after=40, **fields, **lines))["NU14"]
    assert overridden.site == "net.py:9"
    assert overridden.fix.startswith("look at net.py:9, in a train() of Net's own")


@pytest.mark.parametrize(
    ("zero", "experts", "severity"), [(300, 0, "medium"), (5, 0, "info"), (300, 8, None)]
)
def test_a_layer_that_is_dead(tmp_path, zero, experts, severity):
    build = looked_at(
        tmp_path,
        zero_gradient=zero,
        zero_gradient_looks=3,
        zero_gradient_names=["body.0.weight"],
        trainable=1000,
    )
    build.event("hello_update", rank=0, model={"config": {"experts": experts}})
    dead = found(build).get("NU13")
    assert (dead.severity if dead else None) == severity


def test_an_operation_that_lets_no_gradient_through_is_the_place(tmp_path):
    fields = {"zero_gradient": 300, "zero_gradient_looks": 3, "trainable": 1000}
    fields |= {"zero_gradient_by": "round", "zero_gradient_made_at": "model.py:9"}
    dead = found(looked_at(tmp_path, zero_gradient_names=["body.0.weight"], **fields))["NU13"]
    assert dead.site == "model.py:9" and dead.fix.startswith("round() at model.py:9 has a gradient")


@pytest.mark.parametrize(
    ("graphs", "leaks"), [((201, 401), True), ((1, 1), False), ((201, 210), False)]
)
def test_graphs_that_are_kept_leak_although_memory_stands_still(tmp_path, graphs, leaks):
    build = looked_at(tmp_path, steps=450, times=0)
    for step, with_graph in zip((200, 400), graphs, strict=True):
        counts = {"memory_bytes": 1 << 28, "anonymous_bytes": 1 << 28, "tensors": 900}
        build.event("tensors", rank=0, pid=1, step=step, with_graph=with_graph, **counts)
    assert ("ME02" in found(build)) is leaks


@pytest.mark.parametrize(
    ("steps", "nodes", "is_told"),
    [(130, 390, True), (130, 30, True), (130, 4, False), (20, 60, False)],
)
def test_an_average_that_keeps_all_graphs_leaks(tmp_path, steps, nodes, is_told):
    build = looked_at(tmp_path, steps=450, times=0)
    counts = {"memory_bytes": 1 << 28, "anonymous_bytes": 1 << 28, "tensors": 90, "with_graph": 1}
    build.event("tensors", rank=0, pid=1, step=150, **counts)
    chain = {"chain_nodes": nodes, "chain_steps": steps, "chain_kept_as": "smooth"}
    build.event("tensors", rank=0, pid=1, step=150 + steps, **counts, **chain)
    told = found(build).get("ME02")
    assert (told is not None) is is_told
    assert told is None or told.title.startswith("smooth keeps the graphs")


@pytest.mark.parametrize(
    ("cap", "buckets", "said"), [(1048, 10, True), (1048, 2, False), (25 << 20, 10, False)]
)
def test_buckets_that_are_too_small(tmp_path, cap, buckets, said):
    build = of_ranks(tmp_path / "r", [1.0, 1.0])
    build.event("ddp", rank=0, bucket_cap_bytes=cap, bucket_bytes=[40_000] * buckets)
    assert ("CR16" in found(build)) is said


@pytest.mark.parametrize(
    ("own_ms", "slow"), [((0.7, 11.5), 1), ((11.5, 0.7), None), ((1, 1), None)]
)
def test_a_rank_with_work_of_its_own_on_a_loaded_machine(tmp_path, own_ms, slow):
    build = Builder(tmp_path / "r")
    random = np.random.default_rng(3)
    load = 10 + np.cumsum(random.normal(0, 3, 40)).clip(-6, 20)  # drifts as neighbours come and go
    for rank, waits_ms in enumerate((load, random.uniform(1, 3, 40))):
        build.hello(rank, world_size=2)
        for wait_ms in waits_ms:
            own = own_ms[rank] * random.uniform(0.95, 1.05)
            build.step(rank, forward=2.0, backward=4.0, other=own, wait_ms=wait_ms)
    told = [one for one in evaluate(build.open()) if one.id.startswith("CR0")]
    assert [one.rank for one in told if one.id != "CR06"] == ([] if slow is None else [slow])


@pytest.mark.parametrize(
    ("fields", "changes", "is_told"),
    [
        ({}, 1, True),
        ({"exchange": True}, 1, False),
        ({}, 0, False),
        ({"outside_values": None}, 1, False),
    ],
    ids=["a head", "parts of one model", "nothing learns there", "other sizes"],
)
def test_parameters_outside_of_ddp_part(tmp_path, fields, changes, is_told):
    build = Builder(tmp_path / "r")
    for rank in range(2):
        build.hello(rank, world_size=2)
        build.steps(60, rank, forward=6.0, backward=12.0)
        sizes = {"outside_values": 400 + rank if fields.get("outside_values", 0) is None else 400}
        for update in (10, 11, 50, 51):
            outside = {
                "outside": 1000 * rank + update * changes,
                "outside_names": ["Linear.weight"],
            }
            outside.update({**fields, **sizes})
            build.event("replica", rank=rank, update=update, group=2, parameters=update, **outside)
    told = found(build).get("NU09")
    assert (told is not None) is is_told
    assert told is None or ("outside of DDP" in told.title and "Linear.weight" in told.title)


def in_forward(path, code, deeper=("loop net.py:7 forward",), inside="", again=0):
    """A run whose forward has 30 samples at ``code`` and ten that run a module, and whose backward
    has ``again`` samples at ``code``.
    """
    build = Builder(path)
    build.hello(0)
    build.steps(150, forward=6.0, backward=4.0)
    begin = ["loop train.py:9 <module>", "train.py:11 <module>", "net.py:5 forward"]
    module = {"site": "net.py:5", "function": "forward", "path": begin, "code": "self.out(x)"}
    module.update(inside="torch/nn/modules/linear.py:1 forward", count=10)
    line = {"site": "net.py:8", "function": "forward", "inside": inside, "code": code, "count": 30}
    line["path"] = [*begin[:2], *deeper, "net.py:8 forward"]
    update = dict(module, site="train.py:12", path=[begin[0], "train.py:12 <module>"])
    update.update(inside="torch/autograd/graph.py:1 _engine_run_backward", code="loss.backward()")
    recomputed = dict(line, count=again, path=[*update["path"], *deeper, "net.py:8 forward"])
    in_backward = [update, recomputed] if again else [update]
    for phase, samples in (("forward", [module, line]), ("backward", in_backward)):
        build.event("stacks", rank=0, phase=phase, period_ms=50, total=40, samples=samples)
    return found(build)


def test_a_loop_in_the_model_that_takes_values_out(tmp_path):
    loop = in_forward(tmp_path / "r", "words.append(row.argmax().item())")["HO17"]
    assert loop.site == "net.py:8 forward" and loop.severity == "high"
    assert 3.0 < (loop.recoverable_ms_per_step or 0) < 4.5, "at most 30 of 40 samples in 6 ms"


def test_a_loop_that_a_checkpoint_runs_again_counts_in_both_phases(tmp_path):
    once = in_forward(tmp_path / "once", "float(level)")["HO17"]
    twice = in_forward(tmp_path / "twice", "float(level)", again=10)["HO17"]
    assert "of the forward:" in once.title and "of forward and backward:" in twice.title
    gain = (twice.recoverable_ms_per_step or 0) - (once.recoverable_ms_per_step or 0)
    assert gain == pytest.approx(4.0 * 10 / 20, rel=0.01)


def test_the_line_of_the_loop_is_named_and_not_what_it_calls(tmp_path):
    deeper = ("loop net.py:7 forward", "net.py:9 forward")
    assert in_forward(tmp_path / "r", "area.item()", deeper)["HO17"].site == "net.py:9 forward"


@pytest.mark.parametrize(
    ("code", "deeper", "inside"),
    [
        ("h = cell(x[:, i], h)", ("loop net.py:7 forward",), "torch/nn/modules/rnn.py:1 forward"),
        ("h = h * gate + x[:, i]", ("loop net.py:7 forward",), ""),
        ("sizes = counts.tolist()", (), ""),
    ],
    ids=["recurrence", "operators", "no loop"],
)
def test_loops_in_the_model_that_are_the_model(tmp_path, code, deeper, inside):
    assert "HO17" not in in_forward(tmp_path / "r", code, deeper, inside)


@pytest.mark.parametrize(("iterations", "is_passed_by"), [(0, True), (60, False)])
def test_replicas_part_where_ddp_is_never_called(tmp_path, iterations, is_passed_by):
    build = Builder(tmp_path / "r")
    for rank in range(2):
        build.hello(rank, world_size=2)
        build.steps(60, rank, forward=6.0, backward=12.0)
        build.event("ddp_progress", rank=rank, step=32, iterations=iterations)
        for update in (10, 11, 50, 51):
            build.event(
                "replica", rank=rank, update=update, group=2, parameters=100 * update + rank
            )
    parted = found(build)["NU09"]
    assert ("ddp.module(x)" in parted.fix) is is_passed_by


@pytest.mark.parametrize(("loops", "severity"), [(2, "medium"), (1, None)])
def test_operators_inside_two_loops_go_through_elements(tmp_path, loops, severity):
    build = Builder(tmp_path / "r")
    build.hello(0)
    build.steps(150, forward=3.0, backward=3.0, other=12.0)
    training = ["loop train.py:9 <module>", "train.py:12 <module>"]
    inner = [f"loop train.py:{70 + depth} gains" for depth in range(loops)]
    for phase, path, inside in (
        (
            "forward",
            [*training[:1], "train.py:11 <module>"],
            "torch/nn/modules/linear.py:1 forward",
        ),
        ("other", [*training, *inner, "train.py:75 gains"], "torch/_C operator"),
    ):
        site, _, function = path[-1].partition(" ")
        sample = {"site": site, "function": function, "path": path, "inside": inside, "count": 40}
        sample["code"] = "delta = rewards[k] - values[k]"
        build.event("stacks", rank=0, phase=phase, period_ms=50, total=40, samples=[sample])
    host = found(build).get("HO06")
    assert (host.severity if host else None) == severity
    assert host is None or "train.py:75" in (host.site or "")


@pytest.mark.parametrize(("period", "words"), [(0, "moves as where"), (500, "every 500 steps, as")])
def test_a_target_that_was_copied_once_has_no_rhythm(period, words):
    (fix,) = after_a_jump(Reasons(period=period, moves=True), layer_is_known=False)
    assert words in fix
