"""Where a NaN came from, in real trainings: the cases of ``bench/nan_cases.py``, a forked child a
case.
"""

import re
from pathlib import Path

import pytest
from agent_support import run_plain, run_script
from nan_cases import BY_NAME, FAULT_STEP

pytestmark = pytest.mark.e2e
BENCH = Path(__file__).parents[2] / "bench"

SCRIPT = f"""
import eager, sys
sys.path.insert(0, {str(BENCH)!r})
import nan_training
nan_training.main(sys.argv[1:])
"""

WATCHED = (
    "exp in a softmax",
    "fully masked row",
    "sqrt backward at 0",
    "bad sample",
    "poisoned weight",
    "a layer that makes a mask",
    "GradScaler that finds its scale",
    "checkpointing",
)
AFTERWARDS = (
    "exp in a softmax",
    "where and sqrt",
    "bad sample",
    "log 0 in the loss",
    "GradScaler, every step",
    "NaN taken out again",
)


def origins(folder, names, **env):
    script = folder / "train.py"
    script.write_text(SCRIPT)
    found = run_script([str(script), *names], **env)
    assert found.exit_code == 0, found.stderr
    assert found.agent_errors == ""
    events = [guest.of_type("nan_origin") for guest in found.guests]
    return found.stdout, dict(zip(names, events, strict=True))


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    folder = tmp_path_factory.mktemp("numerics")
    stdout, events = origins(folder, WATCHED, GPUTOP_WATCH_NUMERICS="1")
    assert stdout == run_plain([str(folder / "train.py"), *WATCHED]).stdout
    return events


@pytest.fixture(scope="module")
def afterwards(tmp_path_factory):
    return origins(tmp_path_factory.mktemp("numerics"), AFTERWARDS)[1]


@pytest.mark.parametrize("name", WATCHED)
def test_each_step_watched_names_the_layer_once_or_says_nothing(watched, name):
    check(BY_NAME[name], watched[name])


@pytest.mark.parametrize("name", AFTERWARDS)
def test_what_is_left_names_the_layer_where_nothing_was_watched(afterwards, name):
    check(BY_NAME[name], afterwards[name])


def check(case, events):
    if case.layer is None:
        assert events == []
        return
    (event,) = events
    assert re.fullmatch(case.direction, event["direction"]), event
    if case.direction != "input":
        assert event["layer"] == case.layer, event
    if "operation" in event:
        assert re.search(case.operation, event["operation"]), event


def test_the_batch_is_named_to_the_sample_and_its_file(watched):
    (event,) = watched["bad sample"]
    assert event["step"] == FAULT_STEP
    number = FAULT_STEP * 8 + 2
    assert event["batch"] == {
        "number": FAULT_STEP + 1,
        "finite": False,
        "rows": [2],
        "samples": [number],
        "files": [f"sample-{number}.npy"],
    }


def test_an_overflow_has_the_limit_that_it_crossed(watched):
    (event,) = watched["exp in a softmax"]
    assert (event["value"], event["dtype"]) == ("inf", "float32")
    assert event["limit"] == pytest.approx(3.4028e38, rel=1e-4)


def test_a_weight_is_named_and_what_came_back_is_said_to_be_between(watched, afterwards):
    assert watched["poisoned weight"][0]["weight"] == "weight"
    (event,) = afterwards["where and sqrt"]
    assert (event["how"], event["between"]) == ("weights", ["body.before.down", "body.after.up"])
    assert event["step"] == FAULT_STEP + 1
