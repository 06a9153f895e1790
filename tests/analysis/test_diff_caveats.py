"""What a comparison says first: broken losses, other work; and that it reads the same from either
side.
"""

import dataclasses
import json
import re

import numpy as np
import pytest
from analysis_support import Builder

from gputop_agent import wire
from gputop_analysis.diff import compare, diff_data, diff_text
from gputop_analysis.diff.text import headline

SMALL = {
    "class": "Linear",
    "parameters": 650,
    "trainable": 650,
    "by_dtype": {"float32": 650},
    "modules": 1,
}
LARGE = {
    "class": "Sequential",
    "parameters": 4225,
    "trainable": 4225,
    "by_dtype": {"float32": 4225},
    "modules": 4,
}
BASE = {
    "model": SMALL,
    "torch": "2.12.0",
    "device": "cuda:0",
    "device_name": "H100",
    "amp": {"autocast": False},
    "dataloader": {"dataset": "Digits", "dataset_length": 1797},
}


def run(path, ms=10.0, nan_from=None, seed=0, samples=16, ranks=1, **hello):
    """A run of 150 steps whose hello is ``BASE`` but for what is given."""
    build = Builder(path)
    random = np.random.default_rng(seed)
    for rank in range(ranks):
        build.hello(rank, **{**BASE, "world_size": ranks, **hello})
        for step in range(150):
            bad = nan_from is not None and step >= nan_from
            loss = float("nan") if bad else 1.0 / (step + 1 + seed)
            flags = (wire.F_NONFINITE if bad else 0) | (wire.F_FIRST if step == 0 else 0)
            time = ms * random.gamma(1000, 1 / 1000)
            build.step(rank, forward=time, loss=loss, flags=flags, samples=samples)
    build.end()
    return build.open()


def test_a_loss_that_became_nan_is_said_first_and_never_wins(tmp_path):
    a = run(tmp_path / "a", ms=12, model=SMALL)
    b = run(tmp_path / "b", ms=10, model=LARGE, nan_from=120, seed=1, flags={"seed": 7})
    found = compare(a, b)
    assert headline(found) == (
        "regression: B's loss is not finite (NaN or infinite) from step 120; B trains another "
        "model (Sequential, 4,225 parameters, for Linear, 650 parameters of A): "
        "speeds are not comparable"
    )
    text = diff_text(found, 120)
    assert "faster" not in text and "seed" not in text
    assert (found.judgement, found.exit_code) == ("not comparable", 1)
    data = json.loads(json.dumps(diff_data(found), allow_nan=False))
    assert data["regression"] is True and [one["what"] for one in data["said_first"]] == [
        "loss",
        "model",
    ]


def test_a_loss_that_is_whole_again_is_no_regression(tmp_path):
    a, b = run(tmp_path / "a", nan_from=50), run(tmp_path / "b", seed=1)
    found = compare(a, b)
    assert (found.judgement, found.exit_code) == ("not comparable", 0)
    assert headline(found).startswith("A's loss is not finite")


@pytest.mark.parametrize(
    ("other", "says", "comparable"),
    [
        ({"model": LARGE}, "another model", False),
        ({"dataloader": {"dataset": "Cifar"}}, "other data (Cifar, for Digits of A)", False),
        ({"device": "cpu", "device_name": None}, "B runs on cpu, A on H100", False),
        ({"ranks": 2}, "B runs 2 ranks, A 1", False),
        ({"samples": 32}, "B takes 32 samples a step of a rank, A 16", True),
        (
            {"amp": {"autocast": True, "dtype": "bfloat16"}},
            "B trains in autocast bfloat16, A float32",
            True,
        ),
        ({"torch": "2.13.0"}, "B runs torch 2.13.0, A 2.12.0", True),
        (
            {"dataloader": {"dataset": "Digits", "dataset_length": 900}},
            "B's data set has 900 samples, A's 1,797",
            True,
        ),
    ],
)
def test_other_work_is_said_first_and_no_winner_is_named_over_it(tmp_path, other, says, comparable):
    found = compare(run(tmp_path / "a", ms=20), run(tmp_path / "b", ms=5, seed=1, **other))
    said = headline(found)
    assert says in said and said.startswith("B")
    assert "surely" not in said
    assert ("not comparable" in said) == (not comparable)
    assert found.exit_code == 0
    if comparable:
        assert compare(
            run(tmp_path / "c", ms=5), run(tmp_path / "d", ms=20, seed=1, **other)
        ).is_regression


def test_both_sides_say_the_same(tmp_path):
    a, b = run(tmp_path / "a", ms=20), run(tmp_path / "b", ms=22, seed=1)
    forth, back = compare(a, b), compare(b, a)
    for one, other in zip(
        forth.speed.slower, (back.speed.slower[i] for i in (0, 2, 1)), strict=True
    ):
        assert (1 + one) * (1 + other) == pytest.approx(1, rel=1e-9)
    (up, down) = (
        {one.name: one.difference_ms for one in found.speed.phases} for found in (forth, back)
    )
    assert {name: (-d.value, -d.high, -d.low) for name, d in down.items()} == pytest.approx(
        {name: tuple(d) for name, d in up.items()}
    )
    assert (forth.judgement, back.judgement) == ("regression", "faster")


def test_load_on_either_machine_is_taken_off(tmp_path, monkeypatch):
    from gputop_analysis.diff import speed

    a, b = run(tmp_path / "a", ms=10), run(tmp_path / "b", ms=15, seed=1)
    monkeypatch.setattr(
        speed, "foreign_wait_ms", lambda view: 5.0 if view.record.path == b.path else 0.0
    )
    assert (compare(a, b).judgement, compare(b, a).judgement) == ("no difference", "no difference")
    told = " ".join(diff_text(compare(b, a), 100).split())
    assert "from A for 5.00 ms a step, from B for 0.00" in told
    beside_the_times = r"%\) without the load of other programs"
    assert len(re.findall(beside_the_times, told)) == 2, "in the headline and beside the speeds"
    monkeypatch.setattr(speed, "foreign_wait_ms", lambda view: 0.0)
    assert "load of other programs" not in diff_text(compare(b, a), 100)


def test_settings_are_told_once_whole_and_in_order(tmp_path):
    noise = {
        "RANK": "1",
        "LOCAL_RANK": "1",
        "TORCHELASTIC_MAX_RESTARTS": "3",
        "ROLE_NAME": "default",
    }
    changed = {"CUDA_DEVICE_MAX_CONNECTIONS_OF_THIS_RUN": "1"}
    a = run(tmp_path / "a", optimizer={"class": "Adam"}, env={})
    b = run(tmp_path / "b", model=LARGE, optimizer={"class": "AdamW"}, env={**noise, **changed})
    found = compare(a, b)
    text = diff_text(found, 120)
    lines = text[text.index("set differently") :].splitlines()[1:]
    assert [line.split()[1] for line in lines] == [
        "model",
        "optimizer.class",
        "env.CUDA_DEVICE_MAX_CONNECTIONS_OF_THIS_RUN",
    ]
    assert "Linear, 650 parameters -> Sequential, 4,225 parameters" in lines[0]
    assert {c.name for c in found.changes if c.name.startswith("env")} == {
        "env." + name for name in changed
    }


def test_every_caveat_can_be_written(tmp_path):
    found = compare(run(tmp_path / "a"), run(tmp_path / "b", ranks=2, torch="3"))
    assert json.dumps([dataclasses.asdict(one) for one in found.caveats])
