"""Windows, restarts, folded records and ranks side by side."""

import numpy as np
import pytest
from analysis_support import Builder
from hypothesis import given, settings
from hypothesis import strategies as st

from gputop_agent import wire
from gputop_analysis.ahead import steps_ahead
from gputop_analysis.align import align, bucketed
from gputop_analysis.series import RankSeries, tail_steps, thinned
from gputop_analysis.summary import steps_done, summarise
from gputop_analysis.view import RunView


def test_a_window_holds_at_least_the_steps_asked_for(tmp_path):
    build = Builder(tmp_path / "r")
    for n in (1, 5, 5, 1, 5):
        build.step(n_steps=n, forward=1.0)
    rows = build.open().steps(0)
    assert [len(tail_steps(rows, n)) for n in (1, 5, 6, 7, 100)] == [1, 1, 2, 3, 5]
    view = RunView(build.open(), window_steps=6)
    assert view.per_rank[0].total_steps() == 6
    assert view.from_ns == rows["t_end_ns"][-3]


def test_a_window_in_seconds(tmp_path):
    build = Builder(tmp_path / "r")
    for _ in range(100):
        build.step(forward=100.0)
    assert 10 <= RunView(build.open(), window_s=1.0).per_rank[0].total_steps() <= 11


def test_only_the_last_attempt_is_steady_and_all_attempts_are_counted(tmp_path):
    build = Builder(tmp_path / "r")
    build.event("rank_start", rank=0, record_index=0, attempt=0)
    for _ in range(40):
        build.step(forward=1.0)
    build.next_step[0] = -1
    build.event("rank_start", rank=0, record_index=40, attempt=1)
    for _ in range(30):
        build.step(forward=2.0)
    record = build.open()
    series = RunView(record).per_rank[0]
    assert series.attempt_start == 40
    assert series.steady.sum() == 20  # without the first ten of the last attempt
    assert steps_done(record, 0) == 70


@pytest.mark.parametrize(("every", "n_steady"), [(1, 30), (2, 15), (3, 20)])
def test_an_evaluation_in_most_steps_is_a_part_of_them(tmp_path, every, n_steady):
    build = Builder(tmp_path / "r")
    build.hello()
    for step in range(40):
        evaluates = step % every == 0
        build.step(backward=3.0, eval=2.0 * evaluates, flags=wire.F_EVAL if evaluates else 0)
    assert RunView(build.open()).per_rank[0].steady.sum() == n_steady


def test_flagged_steps_are_not_steady(tmp_path):
    build = Builder(tmp_path / "r")
    for step in range(30):
        build.step(
            forward=1.0,
            flags={15: wire.F_EVAL, 16: wire.F_COMPILE, 17: wire.F_SCALER_SKIP}.get(step, 0),
        )
    series = RunView(build.open()).per_rank[0]
    assert series.steady.sum() == 18
    assert series.steps[series.steady].tolist() == [*range(10, 15), *range(17, 30)]


@given(st.lists(st.integers(1, 7), min_size=20, max_size=80), st.integers(1, 9), st.randoms())
@settings(max_examples=40)
def test_buckets_share_out_folded_records_without_loss(counts, size, random):
    counts = np.array(counts)
    ends = np.cumsum(counts)
    values = np.array([random.uniform(0, 10) for _ in counts])
    edges = np.arange(0, ends[-1] + size, size)
    total, steps = bucketed(ends - counts, ends, values, counts, edges)
    assert total.sum() == pytest.approx(values.sum())
    assert steps.sum() == pytest.approx(counts.sum())
    assert (steps <= size + 1e-9).all()


def test_ranks_that_fold_differently_meet_in_common_buckets(tmp_path):
    build = Builder(tmp_path / "r")
    for _ in range(60):
        build.step(0, n_steps=4, forward=2.0)
    for _ in range(80):
        build.step(1, n_steps=3, forward=3.0)
    common = RunView(build.open()).common
    assert common is not None
    assert common.bucket_steps == 4
    assert common.per_step_ms("forward_ns").mean(axis=0) == pytest.approx([2.0, 3.0])


def test_the_step_after_one_ranks_eval_is_left_out_for_all(tmp_path):
    build = Builder(tmp_path / "r")
    for rank in (0, 1):
        for step in range(40):
            build.step(rank, forward=1.0, flags=wire.F_EVAL if (rank, step) == (0, 25) else 0)
    common = RunView(build.open()).common
    assert common is not None
    left_out = set(range(10, 40)) - set(common.edges[:-1][common.keep].tolist())
    assert left_out == {25, 26}


def test_ranks_with_nothing_in_common_are_not_aligned(tmp_path):
    build = Builder(tmp_path / "r")
    for _ in range(50):
        build.step(0, forward=1.0)
    for _ in range(5):
        build.step(1, forward=1.0)
    assert RunView(build.open()).common is None
    assert align([]) is None


def test_a_rank_that_has_trained_alone_before_is_brought_beside_the_others(tmp_path):
    """Rank 0 tries the model out for three steps; its step 3 is the first of all."""
    build = Builder(tmp_path / "r")
    for rank, alone in ((0, 3), (1, 0)):
        for step in range(alone + 100):
            build.step(rank, forward=1.0 + (step - alone))
        for step in (16, 32):
            counts = {"step": step, "iterations": step - alone}
            build.event("ddp_progress", rank=rank, pid=rank + 1, **counts)
    view = RunView(build.open())
    assert {rank: series.ahead for rank, series in view.per_rank.items()} == {0: 3, 1: 0}
    assert view.common is not None
    forward = view.common.per_step_ms("forward_ns")
    assert np.allclose(forward[:, 0], forward[:, 1])


@pytest.mark.parametrize(
    ("progress", "ahead"),
    [
        ([(0, 16, 13), (0, 32, 29), (1, 16, 16)], {0: 3, 1: 0}),
        ([(0, 16, 32), (0, 32, 64), (1, 16, 32)], {}),
        ([(0, 16, 0), (1, 16, 0)], {}),
        ([], {}),
    ],
    ids=["alone", "micro-batches", "never called", "no DDP"],
)
def test_steps_ahead(progress, ahead):
    events = [{"rank": r, "step": s, "iterations": i} for r, s, i in progress]
    assert steps_ahead(events) == ahead


def test_a_very_long_file_is_read_in_even_blocks():
    rows = np.zeros(1_000_000, np.dtype([("step", "<u4"), ("n_steps", "<u4")]))
    rows["step"] = np.arange(len(rows))
    part = thinned(rows)
    assert len(part) == 64 * 512
    assert part["step"][0] == 0
    assert part["step"][-1] == 999_999
    assert RankSeries(0, part).attempt_start == 0


def test_summary_counts_folded_steps_and_weighs_them(tmp_path):
    build = Builder(tmp_path / "r")
    build.step(n_steps=30, forward=1.0, samples=300, tokens=3000)
    build.step(n_steps=1, forward=9.0, samples=10, tokens=100)
    build.end()
    summary = summarise(build.open())
    assert summary.steps == 31
    assert summary.step_time_p50_ms == 1.0
    assert summary.state == "ended"
    forward = next(phase for phase in summary.phases if phase.name == "forward")
    assert forward.mean_ms == pytest.approx(39 / 31)
    assert forward.share == pytest.approx(1.0)
    assert sum(phase.share for phase in summary.phases) == pytest.approx(1.0)


@pytest.mark.parametrize(("world_size", "steps"), [(2, 9), (1, 60)])
def test_ranks_of_a_group_count_as_the_last_and_trainings_apart_as_the_longest(
    tmp_path, world_size, steps
):
    build = Builder(tmp_path / "r")
    for rank, count in enumerate((60, 9)):
        build.hello(rank, world_size=world_size)
        for _ in range(count):
            build.step(rank, forward=5.0)
    assert summarise(build.open()).steps == steps


def test_summary_before_the_first_step(tmp_path):
    build = Builder(tmp_path / "r")
    summary = summarise(build.open(), now_ns=build.open().manifest.created_ns + 10**9)
    assert (summary.state, summary.steps, summary.phases, summary.ranks) == ("starting", 0, (), ())


def test_a_silent_recorder_is_lost_and_a_fresh_one_is_not(tmp_path):
    build = Builder(tmp_path / "r")
    build.steps(10, forward=1.0)
    last = int(build.open().steps(0)["t_end_ns"][-1])
    assert summarise(build.open(), now_ns=last + 2 * 10**9).state == "running"
    assert summarise(build.open(), now_ns=last + 60 * 10**9).state == "lost"


def test_missing_memory_is_nan_not_zero(tmp_path):
    build = Builder(tmp_path / "r")
    build.steps(12, forward=1.0)
    rank = summarise(build.open()).ranks[0]
    assert np.isnan([rank.peak_allocated_gib, rank.reserved_gib, rank.wait_mean_ms]).all()
    assert rank.peak_rss_gib == pytest.approx(300 / 1024)
