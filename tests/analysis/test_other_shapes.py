"""Findings that trainings of other shapes than the first ones were missing, or had wrongly: built
records of them.
"""

from __future__ import annotations

import numpy as np
import pytest
from analysis_support import Builder

from gputop_analysis.findings import evaluate
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


def in_optimizer(path, given, others=(), roots=("Net",), module="torch", **more):
    build = Builder(path)
    optimizer = {"class": "AdamW", "module": module, "parameters": given, "others": list(others)}
    optimizer |= more
    build.hello(
        0, model={"class": "Net", "trainable": 1000, "roots": list(roots)}, optimizer=optimizer
    )
    build.steps(60, forward=6.0, backward=12.0)
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


def test_what_another_package_does_for_a_trainer_is_the_trainers(tmp_path):
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
    by_trainer = {**call, "inside": "lightning/pytorch/core/module.py:1137 backward"}
    build.event("stacks", rank=0, phase="backward", samples=[by_trainer])
    assert found(build)["HO06"].severity == "info"


@pytest.mark.parametrize(
    ("inside", "code", "host"),
    [
        ("torch/serialization.py:2128 load_tensor", "popular = torch.load(path)", True),
        ("torch/functional.py:1866 norm", "row.norm().item()", True),
        ("torch/functional.py:1866 norm", "penalty = row.norm()", False),
        ("", "loss = F.cross_entropy(scores, truth)", False),
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
