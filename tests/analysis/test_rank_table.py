"""The columns of the ranks' screen."""

import numpy as np
import pytest
from analysis_support import Builder

from gputop_analysis.html import charts
from gputop_analysis.rank_excess import rank_excess, reference
from gputop_analysis.rank_table import rank_table
from gputop_analysis.view import RunView
from gputop_probes.record.reader import RunRecord


def synchronous(tmp_path, own_ms, phase="forward"):
    """A run in which every step takes as long as its slowest rank; ``own_ms`` is steps x ranks."""
    build = Builder(tmp_path / "r")
    for rank in range(own_ms.shape[1]):
        build.hello(rank, world_size=own_ms.shape[1])
    for row in own_ms:
        for rank, own in enumerate(row):
            build.step(rank, wait_ms=row.max() - own + 0.5, backward=2.0, **{phase: own})
    return rank_table(RunView(build.open()))


def test_a_slow_rank_is_the_critical_path(tmp_path):
    own = 10 + 0.2 * np.random.default_rng(0).random((120, 4))
    own[:, 2] += 5
    table = synchronous(tmp_path, own)
    assert (table.culprit, table.cause, table.pattern) == (2, "forward", "persistent")
    assert table.slowest_share.tolist() == [0, 0, 1, 0]
    assert set(table.critical_path.tolist()) == {2}
    assert table.excess_phase == ("", "", "forward", "")
    assert table.excess_ms[2] == pytest.approx(5, rel=0.02)
    assert table.wait_ms.argmin() == 2 and table.by("compute_ms")[0] == 2
    assert table.wait_ms[[0, 1, 3]] == pytest.approx(5.6, abs=0.2)
    assert table.exposed_comm_ms == pytest.approx(0.5, rel=0.01)
    assert table.load_imbalance == pytest.approx((17.1 / (12.1 + 5 / 4)) - 1, abs=0.01)
    assert table.comm_share[0] == pytest.approx(5.5 / 17.6, abs=0.01)
    assert table.phases_ms["backward"] == pytest.approx(2.0)


def test_ranks_that_take_turns(tmp_path):
    own = np.random.default_rng(1).uniform(5, 20, (200, 4))
    table = synchronous(tmp_path, own)
    assert (table.culprit, table.cause, table.pattern) == (None, "", "rotating")
    assert table.slowest_share == pytest.approx(
        np.bincount(own[10:].argmax(axis=1)) / 190, abs=0.01
    )


def test_of_two_ranks_each_is_compared_with_the_other_over_the_run_too(tmp_path):
    own = np.tile([10.0, 18.0], (60, 1))
    synchronous(tmp_path, own)
    view = RunView(RunRecord.open(tmp_path / "r"))
    found = rank_excess(view)
    assert found is not None
    _, excess, steps = found
    assert excess[0] == pytest.approx(12 / 20 - 1) and excess[1] == pytest.approx(20 / 12 - 1)
    grid = charts.grid([0, 1], excess, steps, reference(2))
    assert "+66.7 % against the other rank" in grid and "median" not in grid


def test_equal_ranks_are_balanced(tmp_path):
    table = synchronous(tmp_path, 10 + 0.1 * np.random.default_rng(2).random((60, 3)))
    assert (table.culprit, table.pattern, table.excess_phase) == (None, "balanced", ("", "", ""))


@pytest.mark.parametrize("ranks", [0, 1, 3])
def test_what_is_not_measured_is_not_zero(tmp_path, ranks):
    build = Builder(tmp_path / "r")
    for rank in range(ranks):
        build.steps(30, rank, forward=5.0)
    table = rank_table(RunView(build.open()))
    assert len(table) == ranks
    assert (table.culprit, table.pattern, table.source, len(table.critical_path)) == (
        None,
        "unknown",
        "",
        0,
    )
    assert np.isnan(table.wait_ms).all() and np.isnan(table.exposed_comm_ms)
    assert table.step_ms == pytest.approx(5.0, rel=0.05)


def test_a_rank_that_has_hardly_begun(tmp_path):
    build = Builder(tmp_path / "r")
    build.steps(30, 0, forward=5.0)
    build.steps(4, 1, forward=5.0)
    table = rank_table(RunView(build.open()))
    assert table.step_ms == pytest.approx(5.0, rel=0.1)
    assert table.steps.tolist() == [30, 4]
