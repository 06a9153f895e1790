"""Every shape of training loop: all steps counted, phases as the script's own clock has them."""

import itertools
import json
import re
from pathlib import Path

import pytest
from agent_support import Guest, run_script

from gputop_agent import wire

pytestmark = pytest.mark.e2e

SCRIPT = Path(__file__).with_name("scenarios.py")
NAMES = re.findall(r"^@scenario\ndef (\w+)", SCRIPT.read_text(), re.MULTILINE)
SHARE, FLOOR_MS = 0.05, 8.0
START_MS = {"workers_fork": 25.0, "closure_without_loader": 25.0}
"""The guest's thread starts while the second fetch waits for a worker, and both want the
interpreter's lock; without a loader the guest sets itself up inside the first ``step(closure)``,
which the script's clock counts as its own.
"""
AGAIN = 4
EVAL_FLAGGED = {
    "eval_under_no_grad",
    "eval_fetching_with_gradients",
    "eval_in_train_mode",
    "samples_after_a_judgement",
}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """All scenarios in one start of torch, each in a forked child: ``{name: (truth, guest)}``."""
    return run(NAMES, tmp_path_factory.mktemp("scenarios"))


def run(names, folder):
    out = folder / "truth.jsonl"
    out.unlink(missing_ok=True)
    outcome = run_script([str(SCRIPT), str(out), *names], timeout=500)
    assert outcome.exit_code == 0, outcome.stderr
    assert outcome.agent_errors == ""
    assert outcome.stdout == ""
    guests = {guest.of_type("hello")[0]["pid"]: guest for guest in outcome.guests}
    truths = [json.loads(line) for line in out.read_text().splitlines()]
    return {truth["name"]: (truth, guests.get(truth["pid"])) for truth in truths}


@pytest.mark.parametrize("name", NAMES)
def test_every_step_is_counted_and_lies_where_the_script_says(results, name, tmp_path):
    truth, guest = results[name]
    assert guest is not None, "no hello"
    assert guest.n_steps == truth["steps"]
    assert_sums(guest)
    wrong = disagreements(truth["ms"], guest, START_MS.get(name, FLOOR_MS))
    for _ in range(
        AGAIN
    ):  # a busy machine takes the core away between the two clocks; what is wrong is wrong again
        if not wrong:
            break
        truth, guest = run([name], tmp_path)[name]
        wrong = disagreements(truth["ms"], guest, START_MS.get(name, FLOOR_MS))
    assert not wrong, wrong
    assert bool(guest.flags & wire.F_EVAL) == (name in EVAL_FLAGGED)
    assert guest.of_type("goodbye")[0]["steps"] == truth["steps"]


def assert_sums(guest: Guest) -> None:
    for record in guest.steps:
        assert record["wall_ns"] == sum(record[f"{phase}_ns"] for phase in wire.PHASES)
        assert min(record[f"{phase}_ns"] for phase in wire.PHASES) >= 0
        assert record["wall_max_ns"] <= record["wall_ns"]
    assert [r["step"] for r in guest.steps] == sorted(r["step"] for r in guest.steps)


def disagreements(truth: dict[str, float], guest: Guest, floor_ms: float) -> list[str]:
    """Phases that differ by more than 5 % and ``floor_ms``.

    What the script does in between has at least the time it says.
    """
    if not truth:
        return []
    agent_ms = sum(record["agent_ns"] for record in guest.steps) / 1e6
    wrong = []
    for phase in wire.PHASES:
        seen, told = guest.phase_ms(phase), truth.get(phase, 0.0)
        slack = SHARE * told + floor_ms
        if phase == "other":
            bad = seen - agent_ms < told - slack
        else:
            bad = abs(seen - told) > slack
        if bad:
            wrong.append(f"{phase}: {seen:.1f} ms seen, {told:.1f} ms told")
    return wrong


def test_records_of_fast_steps_are_folded(results):
    _, guest = results["very_fast"]
    pairs = itertools.pairwise(
        guest.steps
    )  # what an unsteady step follows is sent before it is full
    full = [
        record
        # what a step of 200 ms follows is sent too: a busy machine has some
        for record, after in pairs
        if not (record["flags"] | after["flags"])
        & (wire.F_UNSTEADY | wire.F_WINDOW | wire.F_ESTIMATED)
        and after["wall_max_ns"] < 200_000_000
    ]
    # on a machine of its own, windows begin before 20 ms of steps have passed
    assert max(r["n_steps"] for r in guest.steps) > 10
    assert all(r["wall_ns"] >= 19_000_000 for r in full)


def test_scaler_skips_are_flagged_and_the_loss_is_unscaled(results):
    _, guest = results["scaler_skips"]
    skipped = [r for r in guest.steps if r["flags"] & wire.F_SCALER_SKIP]
    assert len(skipped) == 3
    assert all(r["flags"] & wire.F_NONFINITE for r in skipped)
    finite = [r["loss"] for r in guest.steps if r["loss"] - r["loss"] == 0]
    assert finite and max(finite) < 10
    assert len(guest.of_type("nonfinite")) == 3


def test_what_a_step_record_tells(results):
    _, guest = results["clipped"]
    # of the last one the CPU time is not known where the script's end came late
    record = next(one for one in reversed(guest.steps) if one["cpu_ns"] >= 0)
    assert record["micro_batches"] == record["optimizer_steps"] == record["n_steps"]
    assert record["samples"] == 4 * record["n_steps"]
    assert 0 < record["loss"] < 10 and record["grad_norm"] > 0
    assert record["lr"] == pytest.approx(1e-3)
    assert 0 < record["compute_cpu_ns"] < record["cpu_ns"] < record["wall_ns"]
    assert record["rss_bytes"] > 1e7 and record["allocated_bytes"] == -1


def test_inferred_boundaries_and_accumulation_are_told(results):
    assert results["updated_by_hand"][1].flags & wire.F_NO_OPT_EVENT
    assert results["optimizer_in_backward"][1].flags & wire.F_OPT_IN_BACKWARD
    assert {r["micro_batches"] for r in results["accumulated"][1].steps} == {4}
    assert results["manual_boundary"][1].flags & wire.F_MANUAL


def test_checkpoints_are_events(results):
    events = results["saved"][1].of_type("checkpoint")
    assert len(events) == 3
    assert all(
        e["via"] == "torch.save" and e["bytes"] > 4e6 and e["path"].endswith("state.pt")
        for e in events
    )
