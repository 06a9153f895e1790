"""Real trainings with one injected fault each: the right finding, on the right rank, with the right cost, and no other.

The scripts keep their own clock and print what the fault cost. Under load from outside, waiting for a core (IN04) is a
true finding of any run here, so it counts only where it is the fault that was injected.
"""

import re

import pytest
from faults_support import run

pytestmark = pytest.mark.faults

TOLERANCE = 0.20


def check(outcome, id, rank, absorbed=()):
    """Exactly this finding above info, on this rank, with the cost that the script measured."""
    assert list(outcome.serious) == [id], outcome.told()
    finding = outcome.serious[id]
    assert finding.rank == rank, outcome.told()
    assert set(absorbed) <= set(finding.absorbed), outcome.told()
    truth = outcome.truth.get("truth_ms_per_step", 0.0)
    if truth:
        assert finding.recoverable_ms_per_step == pytest.approx(truth, rel=TOLERANCE), (truth, outcome.told())
    return finding


def skip_if_overloaded(outcome):
    """For faults that cannot be told from a lack of cores when other programs take the cores away."""
    if any(one.id == "IN04" and one.severity != "info" for one in outcome.findings):
        pytest.skip("other programs keep the cores busy: " + outcome.told())


def test_slow_items_in_the_training_process(tmp_path):
    finding = check(run(tmp_path, "one.py", FAULT="slow_getitem"), "IN02", 0, absorbed=["IN01"])
    assert finding.site and "one.py" in finding.site
    assert "num_workers=" in finding.fix


def test_too_few_workers(tmp_path):
    outcome = run(tmp_path, "one.py", FAULT="few_workers")
    skip_if_overloaded(outcome)
    check(outcome, "IN01", 0)


def test_spinning_processes(tmp_path):
    outcome = run(tmp_path, "one.py", FAULT="spinners", STEPS=200)
    check(outcome, "IN04", 0)


def test_garbage_collection(tmp_path):
    check(run(tmp_path, "one.py", FAULT="gc", STEPS=100), "HO03", 0)


def test_a_thread_that_holds_the_gil(tmp_path):
    outcome = run(tmp_path, "one.py", FAULT="gil", STEPS=300)
    assert list(outcome.serious) == ["HO04"], outcome.told()
    finding = outcome.serious["HO04"]
    assert finding.rank == 0
    assert "busy_thread" in (finding.site or ""), outcome.told()
    if "IN04" not in finding.absorbed:  # the script's clock sees a lack of cores as well
        assert finding.recoverable_ms_per_step == pytest.approx(outcome.truth["truth_ms_per_step"], rel=TOLERANCE)


def test_sleeping_host_code_is_named(tmp_path):
    finding = check(run(tmp_path, "one.py", FAULT="host_sleep"), "HO06", 0)
    assert "log_metrics" in (finding.site or "")


@pytest.mark.parametrize(("fault", "id"), [("checkpoint", "HO07"), ("eval", "HO08")])
def test_checkpoints_and_evaluation(tmp_path, fault, id):
    check(run(tmp_path, "one.py", FAULT=fault), id, 0)


@pytest.mark.parametrize(("fault", "id", "said"), [("nan", "NU01", "step 60 "), ("spike", "NU02", r"steps? 1[12]\d")])
def test_losses(tmp_path, fault, id, said):
    assert re.search(said, check(run(tmp_path, "one.py", FAULT=fault), id, 0).title)


def test_a_list_that_grows(tmp_path):
    check(run(tmp_path, "one.py", FAULT="leak", STEPS=300), "ME05", 0)


@pytest.mark.parametrize(
    ("fault", "id", "code", "said"),
    [("exit3", "HC09", 3, "exit 3"), ("kill9", "HC09", 137, "SIGKILL"), ("raise", "HC06", 1, "a shard is missing")],
)
def test_ends(tmp_path, fault, id, code, said):
    outcome = run(tmp_path, "one.py", FAULT=fault, STEPS=90)
    assert outcome.exit_code == code
    assert said in check(outcome, id, 0).title


@pytest.mark.parametrize(
    ("fault", "world", "id"),
    [
        ("backward", 2, "CR01"),
        ("backward", 3, "CR01"),
        ("forward", 2, "CR02"),
        ("data", 3, "CR03"),
        ("host", 2, "CR04"),
        ("optimizer", 2, "CR04"),
    ],
)
def test_a_slow_rank(tmp_path, fault, world, id):
    finding = check(run(tmp_path, "ranks.py", FAULT=fault, WORLD=world), id, rank=1)
    if fault == "optimizer":
        assert "optimizer" in finding.title


def test_uneven_batches(tmp_path):
    check(run(tmp_path, "ranks.py", FAULT="lengths", STEPS=200), "CR05", None)


def test_a_rank_that_raises(tmp_path):
    outcome = run(tmp_path, "ranks.py", FAULT="raise", STEPS=60)
    assert outcome.exit_code == 1
    assert "disk quota exceeded" in check(outcome, "HC06", rank=1, absorbed=["HC09"]).title


def test_a_rank_that_hangs(tmp_path):
    outcome = run(tmp_path, "ranks.py", FAULT="hang", GPUTOP_HANG_S=4, until="stack_dump")
    hang = outcome.serious.get("HC01")
    assert hang is not None, outcome.told()
    assert hang.rank == 1
    assert "ranks.py" in (hang.site or ""), hang.evidence


@pytest.mark.parametrize(
    ("script", "environment"),
    [
        ("one.py", {}),
        ("one.py", {"FAULT": "clean_workers"}),
        ("one.py", {"FAULT": "clean_rare_eval"}),
        ("one.py", {"FAULT": "clean_one_checkpoint"}),
        ("one.py", {"FAULT": "clean_accumulation"}),
        ("one.py", {"FAULT": "clean_autocast"}),
        ("one.py", {"FAULT": "clean_get_batch"}),
        ("one.py", {"FAULT": "clean_tiny", "WIDTH": 16, "BATCH": 8, "STEPS": 1500}),
        ("ranks.py", {"WORLD": 2}),
        ("ranks.py", {"WORLD": 3, "STEPS": 80}),
    ],
)
def test_clean_runs_have_no_finding(tmp_path, script, environment):
    outcome = run(tmp_path, script, **environment)
    assert outcome.exit_code == 0, outcome.output
    assert outcome.serious == {}, outcome.told()
