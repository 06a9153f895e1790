"""Real trainings with one injected fault each: the right finding, on the right rank, with the right
cost, and no other.

The scripts keep their own clock and print what the fault cost. Runs go side by side; what comes out
wrong is tried twice more with the machine to itself (``bench/faults.py`` tells what needed that).
Under load from outside, waiting for a core (IN04) is a true finding of any run here, so it counts
only where it is the fault that was injected.
"""

import re

import pytest
from fault_cases import Case, Clean, cases, clean_runs, missing
from faults_support import Outcome, machine, run, run_case

pytestmark = pytest.mark.faults

TOLERANCE = 0.20


@pytest.mark.parametrize("case", [one for one in cases() if one.suite], ids=lambda case: case.label)
def test_fault(tmp_path, case: Case):
    if missing(case):
        pytest.skip(missing(case))
    for attempt, alone in enumerate((case.alone, True, True)):
        with machine(alone):
            outcome = run_case(tmp_path / str(attempt), case)
        wrong = complaints(case, outcome)
        if not wrong and not overloaded(outcome, case):
            return
    if overloaded(outcome, case):
        pytest.skip("other programs keep the cores busy: " + outcome.told())
    assert not wrong, f"{wrong}\n{outcome.told()}\n{outcome.output}"


@pytest.mark.parametrize(
    "clean", [one for one in clean_runs() if one.suite], ids=lambda clean: clean.label
)
def test_clean_runs_have_no_finding(tmp_path, clean: Clean):
    for attempt, alone in enumerate((False, True, True)):
        with machine(alone):
            outcome = run(tmp_path / str(attempt), clean.script, **clean.environment)
        assert outcome.exit_code == 0, outcome.output
        if not outcome.serious:
            return
    assert outcome.serious == {}, outcome.told()


def complaints(case: Case, outcome: Outcome) -> list[str]:
    """What is not as the case says."""
    found = [one for one in outcome.findings if one.id == case.id and one.severity in case.severity]
    others = set(outcome.serious) - {case.id, *case.also}
    wrong = [f"{len(found)} findings {case.id}"] if len(found) != 1 else []
    wrong += [f"also {sorted(others)}"] if others else []
    wrong += (
        [f"exit code {outcome.exit_code}"]
        if not case.until and outcome.exit_code != case.exit_code
        else []
    )
    for one in found[:1]:
        wrong += [f"rank {one.rank}"] if one.rank != case.rank else []
        wrong += [f"site {one.site}"] if not re.search(case.site, one.site or "") else []
        wrong += [f"title {one.title}"] if not re.search(case.title, one.title) else []
        if not _to_absorb(case, outcome) <= set(one.absorbed):
            wrong.append(f"absorbed {one.absorbed}")
        truth = outcome.truth.get("truth_ms_per_step", 0.0)
        if truth and not promised(case, one.recoverable_ms_per_step, truth):
            wrong.append(f"{one.recoverable_ms_per_step} ms a step, {truth} in truth")
    return wrong


def _to_absorb(case: Case, outcome: Outcome) -> set[str]:
    """What the finding must have taken in: IN01 is silent by itself where loader and training share
    a core, as the kernel may have them do though another is free (IN04 says so, as an info).
    """
    is_starved = any(one.id == "IN04" for one in outcome.findings)
    return set(case.absorbed) - ({"IN01"} if is_starved else set())


def promised(case: Case, recoverable_ms: float | None, truth_ms: float) -> bool:
    """Whether the time that a finding promises is the truth, or where cores bound it, some of that
    and no more.
    """
    if case.by_cores:
        return recoverable_ms is not None and 0 < recoverable_ms <= truth_ms * (1 + TOLERANCE)
    return recoverable_ms == pytest.approx(truth_ms, rel=TOLERANCE)


def overloaded(outcome: Outcome, case: Case) -> bool:
    """A fault that is a lack of speed cannot be told from a lack of cores when other programs take
    the cores away.
    """
    return case.id != "IN04" and any(
        one.id == "IN04" and one.severity != "info" for one in outcome.findings
    )
