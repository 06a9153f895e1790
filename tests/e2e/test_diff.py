"""``gputop diff`` on real runs: the same training twice, and once with a sleep in each step."""

import json
import re
import statistics

import pytest
from e2e_support import gputop, training

pytestmark = pytest.mark.e2e

STEPS = 150
SLEEP = (
    "begin = time.perf_counter(); time.sleep(0.008); print('slept', time.perf_counter() - begin)"
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("diff")
    bodies = {
        "first": "pass",
        "again": "pass",
        "slow": SLEEP,
        "forked": "optimizer.param_groups[0]['lr'] = 0.2 if i > 60 else 1e-3",
    }
    for name, body in bodies.items():
        (folder / "train.py").write_text(
            "import torch; torch.manual_seed(0)\n" + training(STEPS, body)
        )
        env = {"NCCL_DEBUG": "WARN"} if name == "forked" else {}
        done = gputop(
            "run", "--headless", "--run-dir", name, "python", "train.py", tmp_path=folder, env=env
        )
        assert done.returncode == 0, done.stderr
        (folder / f"{name}.out").write_text(done.stdout)
    return folder


def diff(folder, *words):
    return gputop("diff", *words, tmp_path=folder)


def test_the_same_training_twice_is_no_regression(runs) -> None:
    done = diff(runs, "first", "again", "--json")
    assert done.returncode == 0, done.stdout
    found = json.loads(done.stdout)
    assert found["regression"] is False
    assert found["loss"]["first_different_step"] is None
    assert found["loss"]["same_seed"] is True


def test_a_sleep_in_each_step_is_found_with_its_cost_and_phase(runs) -> None:
    done = diff(runs, "first", "slow", "--threshold", "10%")
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stderr == ""
    assert done.stdout.startswith("regression: B is ")
    found = json.loads(diff(runs, "first", "slow", "--json").stdout)
    assert found["speed"]["phase"] == "other"
    low, high = next(
        one["interval_ms_per_step"] for one in found["speed"]["phases"] if one["name"] == "other"
    )
    slept = re.findall(r"^slept (\S+)", (runs / "slow.out").read_text(), re.MULTILINE)
    slept_ms = 1e3 * statistics.median(map(float, slept))
    assert len(slept) == STEPS and low < slept_ms + 0.5 and high > slept_ms - 0.5


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("first",), "B"),
        (("first", "no-such-run"), "no-such-run"),
        (("first", "slow", "--threshold", "lots"), "5%"),
        (("first", "slow", "--threshold", "-5%"), "--threshold"),
        (("first", "slow", "--threshold", "5"), "5%"),
    ],
)
def test_bad_input_gets_one_line_and_exit_code_2(runs, words, says) -> None:
    done = diff(runs, *words)
    assert done.returncode == 2
    assert done.stdout == ""
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1 and says in lines[0], done.stderr


def test_a_run_without_steps_cannot_be_compared(runs) -> None:
    assert gputop("run", "--run-dir", "empty", "true", tmp_path=runs).returncode == 0
    done = diff(runs, "first", "empty")
    assert done.returncode == 2
    assert "no training step" in done.stderr


def test_a_report_against_a_baseline_names_what_drifted_and_where_the_losses_part(runs) -> None:
    done = gputop("report", "forked", "--baseline", "first", "--json", tmp_path=runs)
    found = {one["id"]: one for one in json.loads(done.stdout)["findings"]}
    assert "NCCL_DEBUG" in found["RE01"]["title"]
    differs, equal = map(
        int, re.search(r"at step (\d+), equal at step (\d+)", found["RE04"]["title"]).groups()
    )
    assert equal <= 62 < differs, "set after the update of step 61, it moves the loss of step 63"
