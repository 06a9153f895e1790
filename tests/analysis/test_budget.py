"""The budget: ten lines that add up to the wall time to the nanosecond, with the right amount in
each.
"""

import numpy as np
import pytest
from analysis_support import T0, Builder, pack
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gputop_agent import wire
from gputop_analysis.budget import LINES, budget
from gputop_analysis.findings import evaluate
from gputop_analysis.split import apportion
from gputop_analysis.view import RunView
from gputop_probes.record.layout import PROCESS_RANK


def budget_of(builder, **window):
    return budget(RunView(builder.open(), **window))


@given(
    st.integers(0, 2**62),
    st.lists(st.floats(0, 1e6, allow_nan=False, allow_subnormal=False), min_size=1, max_size=8),
)
@example(2**54 - 1, [0.0, 1.0])
def test_apportioned_parts_add_up_and_stay_close(total, weights):
    parts = apportion(total, weights)
    assert sum(parts) == total
    assert all(part >= 0 for part in parts)
    if sum(weights) > 0:
        slack = 2 + total * 1e-12
        assert all(
            abs(p - total * w / sum(weights)) <= slack for p, w in zip(parts, weights, strict=True)
        )


phases = st.fixed_dictionaries({name: st.floats(0, 50) for name in wire.PHASES})
FLAGS = (0, 0, 0, wire.F_EVAL, wire.F_CHECKPOINT, wire.F_COMPILE, wire.F_SCALER_SKIP, wire.F_AGENT)


@settings(max_examples=25)
@given(
    st.lists(
        st.tuples(
            phases,
            st.one_of(st.none(), st.floats(0, 80)),
            st.sampled_from(FLAGS),
            st.integers(1, 5),
        ),
        min_size=1,
        max_size=30,
    ),
    st.booleans(),
)
def test_lines_add_up_to_the_wall_time_whatever_the_record_holds(
    tmp_path_factory, steps, with_device
):
    builder = Builder(tmp_path_factory.mktemp("run"))
    for rank in range(2):
        builder.hello(
            rank,
            world_size=2,
            device_name="NVIDIA H200",
            model={"parameters": 10**9, "trainable": 10**9},
        )
        for times, wait_ms, flags, n in steps:
            builder.step(
                rank,
                n_steps=n,
                wait_ms=wait_ms,
                flags=flags,
                tokens=4096 * n,
                agent_ns=10**6,
                **times,
            )
            if with_device:
                ms = {
                    f"{k}_ms": v
                    for k, v in times.items()
                    if k in ("data", "forward", "h2d", "backward", "other")
                }
                row = pack(
                    "device",
                    t_end_ns=builder.clock[rank],
                    optimizer_ms=1.0,
                    total_ms=sum(ms.values()),
                    **ms,
                )
                builder.writer.append_rank("device", rank, row)
    found = budget_of(builder)
    record = builder.open()
    for one in found.ranks:
        assert tuple(one.lines_ns) == tuple(LINES)
        assert all(type(value) is int and value >= 0 for value in one.lines_ns.values())
        assert (
            sum(one.lines_ns.values())
            == one.wall_ns
            == int(record.steps(one.rank)["wall_ns"].sum())
        )
    assert sum(found.lines_ns.values()) == found.wall_ns


def test_each_phase_has_its_line(tmp_path):
    builder = Builder(tmp_path)
    builder.hello()
    for _ in range(50):
        builder.step(
            data=1,
            h2d=2,
            forward=3,
            backward=4,
            optimizer=5,
            comm=6,
            eval=7,
            checkpoint=8,
            compile=9,
            other=10,
        )
    found = budget_of(builder)
    expected = {
        "useful_compute": 3 + 4 + 5,
        "compute_overhead": 0,
        "data_stall": 1 + 2,
        "host": 10 * 49 / 50,
        "core_wait": 0,
        "communication": 6,
        "straggler_wait": 0,
        "checkpoint": 8,
        "eval": 7,
        "compile": 9,
        "other": 10 / 50,
    }
    assert {name: found.ms_per_step(name) for name in LINES} == pytest.approx(expected)
    assert found.mfu is None


def test_ddps_wait_moves_out_of_backward_and_the_late_rank_is_charged_to_the_others(tmp_path):
    builder = Builder(tmp_path)
    for _ in range(100):
        builder.step(0, forward=10, backward=20, wait_ms=12)  # waits for rank 1 ...
        builder.step(
            1, forward=20, backward=20, wait_ms=2
        )  # ... which itself waits 2 ms for the sums
    first, second = budget_of(builder).ranks
    assert first.lines_ns["useful_compute"] == 100 * 30 * 10**6
    assert first.lines_ns["communication"] == pytest.approx(100 * 2e6, rel=1e-6)
    assert first.lines_ns["straggler_wait"] == pytest.approx(100 * 10e6, rel=1e-6)
    assert second.lines_ns["straggler_wait"] == 0
    assert second.lines_ns["communication"] == 100 * 2 * 10**6


def test_ranks_that_are_late_in_turn_are_stragglers_too(tmp_path):
    builder = Builder(tmp_path)
    for step in range(200):
        for rank in range(2):
            builder.step(rank, forward=10, backward=20, wait_ms=1 if step % 2 == rank else 9)
    for one in budget_of(builder).ranks:
        assert one.lines_ns["communication"] == pytest.approx(200 * 1e6, rel=0.01)
        assert one.lines_ns["straggler_wait"] == pytest.approx(200 * 4e6, rel=0.01)


def test_synthetic_device_clock_splits_what_the_host_only_launched(tmp_path):
    builder = Builder(tmp_path)
    builder.hello(device="cuda")
    for step in range(100):
        builder.step(
            forward=1, backward=2, optimizer=1, other=96
        )  # the host waits for the device in loss.item()
        row = pack(
            "device",
            step=step,
            data_ms=10,
            h2d_ms=0,
            forward_ms=30,
            backward_ms=50,
            optimizer_ms=5,
            other_ms=5,
        )
        builder.writer.append_rank("device", 0, row)
    found = budget_of(builder)
    assert found.ranks[0].clock == "device"
    assert found.share("useful_compute") == pytest.approx(0.85, abs=0.01)
    assert found.share("data_stall") == pytest.approx(0.10, abs=0.01)
    assert found.share("host") == pytest.approx(0.05, abs=0.01)


def test_a_skipped_update_is_overhead(tmp_path):
    builder = Builder(tmp_path)
    for step in range(100):
        builder.step(forward=5, backward=5, flags=wire.F_SCALER_SKIP if step % 4 == 0 else 0)
    assert budget_of(builder).share("compute_overhead") == pytest.approx(0.25)


def test_useful_compute_is_the_mfu_where_the_peak_is_known(tmp_path):
    builder = Builder(tmp_path)
    builder.hello(
        device="cuda",
        device_name="NVIDIA A100-SXM4-80GB",
        amp={"autocast": True, "dtype": "bfloat16"},
        model={"parameters": 10**9, "trainable": 10**9},
        checkpointing=True,
    )
    for _ in range(100):
        builder.step(forward=30, backward=60, other=10, tokens=2048, samples=2)
    found = budget_of(builder)
    mfu = 6e9 * 2048 / 0.1 / 312e12
    assert found.mfu == pytest.approx(mfu)
    assert found.hfu == pytest.approx(mfu * 4 / 3)
    assert found.share("useful_compute") == pytest.approx(mfu)
    assert found.share("compute_overhead") == pytest.approx(0.9 - mfu)


def test_an_empty_window_has_an_empty_budget(tmp_path):
    builder = Builder(tmp_path)
    builder.hello()
    found = budget_of(builder, window_steps=100)
    assert found.wall_ns == found.steps == 0
    assert found.share("host") == found.ms_per_step("host") == 0.0
    assert np.all(np.array(list(found.lines_ns.values())) == 0)


def queued(builder, rank, share):
    """Samples of a training thread that stands in the run queue for a share of 4 s."""
    for tick in range(9):
        at = tick * 5 * 10**8
        builder.sample(
            "process",
            t_ns=T0 + at,
            run_wait_ns_total=int(share * at),
            pid=100 + rank,
            rank=rank,
            kind=PROCESS_RANK,
        )


@pytest.mark.parametrize(
    ("shares", "title"),
    [
        ((0.50, 0.58), "54 % of the time is spent waiting for a core, 58 % on rank 1"),
        ((0.501, 0.503), "50 % of the time is spent waiting for a core"),
        ((0.10, 0.60), "rank 1 spends 60 % of its time waiting for a core"),
    ],
)
def test_the_finding_and_the_budget_give_one_figure_of_waiting_for_a_core(tmp_path, shares, title):
    builder = Builder(tmp_path)
    for rank, share in enumerate(shares):
        builder.hello(rank, world_size=2, threads={"torch": 1})
        builder.steps(200, rank, forward=10, backward=8, comm=2)
        queued(builder, rank, share)
    found = budget_of(builder)
    only = next(one for one in evaluate(builder.open()) if one.id == "IN04")
    assert only.title == title
    assert only.evidence.startswith(
        f"rank 1, which waits most: run-queue wait {shares[1]:.0%}"[:-1]
    )
    for rank_budget, share in zip(found.ranks, shares, strict=True):
        assert rank_budget.lines_ns["core_wait"] / rank_budget.wall_ns == pytest.approx(share)
    assert found.share("core_wait") == pytest.approx(sum(shares) / 2, rel=1e-3)


def test_a_queue_longer_than_the_work_goes_on_in_the_waiting(tmp_path):
    builder = Builder(tmp_path)
    builder.hello(dataloader={"num_workers": 2})
    builder.steps(200, forward=4, data=8, comm=8)
    queued(builder, 0, 0.6)
    (rank,) = budget_of(builder).ranks
    assert sum(rank.lines_ns.values()) == rank.wall_ns
    assert rank.lines_ns["core_wait"] / rank.wall_ns == pytest.approx(0.6)
    assert rank.lines_ns["useful_compute"] == 0
    for line in ("data_stall", "communication"):
        assert rank.lines_ns[line] == pytest.approx(200 * 4e6, rel=1e-2)
