"""RE01 and RE04: only against a baseline, and only what they can be sure of."""

import pytest
from analysis_support import Builder

from gputop_analysis.findings import judge_view
from gputop_analysis.view import RunView


def a_run(path, ms=10.0, forks_at=None, **hello):
    builder = Builder(path)
    base = {"torch": "2.12.0", "flags": {"seed": 7}, "optimizer": {"class": "AdamW"}}
    builder.hello(**{**base, **hello})
    for step in range(120):
        loss = 1.0 / (1 + step) * (1.5 if forks_at is not None and step >= forks_at else 1.0)
        builder.step(forward=ms * (1 + 0.01 * (step % 3)), loss=loss)
    builder.end()
    return builder.open()


def found(a, b):
    view = RunView(b)
    view.baseline = a
    kept, taken = judge_view(view)
    return {
        one.id: one
        for one in (*kept, *taken)
        if one.id.startswith("RE0") and one.id in ("RE01", "RE04")
    }


def test_without_a_baseline_nothing_is_compared(tmp_path):
    kept, _ = judge_view(RunView(a_run(tmp_path, torch="2.13.0", forks_at=50)))
    assert not {one.id for one in kept} & {"RE01", "RE04"}


def test_the_same_again_is_silent(tmp_path):
    assert found(a_run(tmp_path / "a"), a_run(tmp_path / "b")) == {}


@pytest.mark.parametrize(("ms", "severity"), [(10.0, "info"), (14.0, "medium")])
def test_another_environment_is_told_and_weighs_more_beside_a_regression(tmp_path, ms, severity):
    one = found(a_run(tmp_path / "a"), a_run(tmp_path / "b", ms=ms, torch="2.13.0"))["RE01"]
    assert one.severity == severity
    assert "torch" in one.title and "2.12.0 -> 2.13.0" in one.evidence
    assert one.proof.value == 1 and one.proof.inputs[0].name == "torch"


def test_the_step_at_which_the_losses_part(tmp_path):
    one = found(a_run(tmp_path / "a"), a_run(tmp_path / "b", forks_at=50))["RE04"]
    assert "step 50" in one.title
    assert one.proof.value == 50


@pytest.mark.parametrize(
    "change", [{"flags": {"seed": 8}}, {"optimizer": {"class": "SGD"}}, {"flags": {}}]
)
def test_losses_may_part_where_something_was_changed(tmp_path, change):
    assert "RE04" not in found(a_run(tmp_path / "a"), a_run(tmp_path / "b", forks_at=50, **change))
