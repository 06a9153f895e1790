"""Findings on trainings of a real H200 with a fault each, recorded by ``bench/gpu.py``."""

import tarfile

import numpy as np
import pytest
from gpu_training import FAULTS, TUNED
from recordings_support import BUNDLED

from gputop_analysis.findings import judge
from gputop_analysis.view import RunView
from gputop_probes.record.reader import RunRecord

NO_EFFECT = {"host-code", "slow-optimizer"}
"""Steps as long as without the fault: the GPU's own work hid it. They are not bundled."""
OF_THE_MACHINE = {"ME07"}
"""Other trainings had their context on the GPU, and waited."""


@pytest.fixture(scope="module")
def trainings(tmp_path_factory):
    folder = tmp_path_factory.mktemp("h200")
    with tarfile.open(BUNDLED / "h200-trainings.tar.gz") as archive:
        # Python before 3.11.4 and 3.10.12 knows no filter
        archive.extractall(
            folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {})
        )
    return folder / "h200"


def loud(folder):
    """Findings above info that no other one takes in."""
    return {one.id for one in judge(RunRecord.open(folder))[0] if one.severity != "info"}


@pytest.mark.parametrize("fault", sorted(FAULTS.keys() - NO_EFFECT))
def test_a_fault_is_told_by_its_finding(trainings, fault):
    by_itself, taken_in = judge(RunRecord.open(trainings / fault))
    assert FAULTS[fault] in {finding.id for finding in (*by_itself, *taken_in)}


@pytest.mark.parametrize("clean", ["clean", TUNED])
def test_without_a_fault_nothing_above_info_is_told(trainings, clean):
    assert loud(trainings / clean) <= OF_THE_MACHINE


def test_nothing_else_above_info_is_told_of_most_faults(trainings):
    """But what belongs to the fault: a loader that sleeps copies what it makes, too."""
    beside = {}
    for fault in FAULTS.keys() - NO_EFFECT - {"waits-for-data"}:
        beside[fault] = loud(trainings / fault) - OF_THE_MACHINE - {FAULTS[fault]}
    # bf16 where fp32 is meant: one finding of precision takes in the other
    assert {fault: ids for fault, ids in beside.items() if ids} == {"no-tf32": {"CE01"}}


def test_phases_are_the_devices(trainings):
    """As the training's own CUDA events told them in the second half of its steps."""
    view = RunView(RunRecord.open(trainings / "clean"))
    series = view.per_rank[0]
    assert series.clock == "device"
    means = {name: series.mean_ms(f"{name}_ns") for name in ("forward", "backward", "optimizer")}
    assert means["forward"] == pytest.approx(5.06, rel=0.1)
    assert means["backward"] == pytest.approx(13.83, rel=0.1)
    assert means["optimizer"] == pytest.approx(1.164, rel=0.1)
    sums = sum(series.rows[f"{name}_ns"] for name in _phase_names())
    assert (sums == series.rows["wall_ns"]).all()


def test_the_chart_over_time_shows_the_same_phases(trainings):
    from gputop.feed.timeline import timeline

    record = RunRecord.open(trainings / "reads-every-loss")
    series = RunView(record).per_rank[0]
    names = list(_phase_names())
    drawn = timeline(record, 0)
    forward = [column[names.index("forward")] for column in drawn.phases_ms]
    assert np.nanmedian(forward) == pytest.approx(np.median(series.phase_ms("forward")), rel=0.1)


def _phase_names():
    from gputop_agent import wire

    return wire.PHASES
