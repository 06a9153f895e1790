"""Real trainings with one injected fault each: the right finding, on the right rank, with the right cost, and no other.

The scripts keep their own clock and print what the fault cost. Under load from outside, waiting for a core (IN04) is a
true finding of any run here, so it counts only where it is the fault that was injected.
"""

import re

import pytest
from fault_cases import Case, Clean, cases, clean_runs, missing
from faults_support import Outcome, run

pytestmark = pytest.mark.faults

TOLERANCE = 0.20


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.label)
def test_fault(tmp_path, case: Case):
    if missing(case):
        pytest.skip(missing(case))
    outcome = run(tmp_path, case.script, until=case.until, **case.environment)
    skip_if_overloaded(outcome, case)
    found = [one for one in outcome.findings if one.id == case.id and one.severity in case.severity]
    assert len(found) == 1, outcome.told()
    assert set(outcome.serious) - {case.id, *case.also} == set(), outcome.told()
    (finding,) = found
    assert finding.rank == case.rank, outcome.told()
    assert re.search(case.site, finding.site or ""), outcome.told()
    assert re.search(case.title, finding.title), outcome.told()
    assert set(case.absorbed) <= set(finding.absorbed), outcome.told()
    assert case.until or outcome.exit_code == case.exit_code, outcome.output
    truth = outcome.truth.get("truth_ms_per_step", 0.0)
    if truth:
        assert finding.recoverable_ms_per_step == pytest.approx(truth, rel=TOLERANCE), (truth, outcome.told())


@pytest.mark.parametrize("clean", clean_runs(), ids=lambda clean: clean.label)
def test_clean_runs_have_no_finding(tmp_path, clean: Clean):
    outcome = run(tmp_path, clean.script, **clean.environment)
    assert outcome.exit_code == 0, outcome.output
    assert outcome.serious == {}, outcome.told()


def skip_if_overloaded(outcome: Outcome, case: Case) -> None:
    """A fault that is a lack of speed cannot be told from a lack of cores when other programs take the cores away."""
    if case.id != "IN04" and any(one.id == "IN04" and one.severity != "info" for one in outcome.findings):
        pytest.skip("other programs keep the cores busy: " + outcome.told())
