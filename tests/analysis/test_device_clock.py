"""Phases of step records on the device's clock."""

import numpy as np
import pytest
from analysis_support import Builder, pack
from hypothesis import given
from hypothesis import strategies as st

from gputop_agent import wire
from gputop_analysis.device_clock import DEVICE_STEPS, _divided, on_device_clock
from gputop_analysis.view import RunView


def launching(tmp_path, samples=60, **step):
    """Steps of 20 ms on a device, where the host launches for 4 ms and then waits for a loss."""
    build = Builder(tmp_path / "r")
    build.hello(device="cuda")
    for _ in range(60):
        build.step(forward=1.0, backward=2.0, optimizer=1.0, other=16.0)
    if step:
        build.step(**step)
    rows = build.open().steps(0)
    for row in rows[:samples]:
        device = {"forward_ms": 6.0, "backward_ms": 12.0, "optimizer_ms": 1.5, "other_ms": 0.5}
        device |= {"data_ms": 0.0, "h2d_ms": 0.0, "total_ms": 20.0}
        told = {"t_end_ns": int(row["t_end_ns"]), "step": int(row["step"])}
        build.writer.append_rank("device", 0, pack("device", **told, **device))
    return build.open()


def test_phases_are_what_the_device_took_and_add_up(tmp_path):
    series = RunView(launching(tmp_path)).per_rank[0]
    assert series.clock == "device"
    assert series.mean_ms("forward_ns") == pytest.approx(6.0)
    assert series.mean_ms("backward_ns") == pytest.approx(12.0)
    assert series.mean_ms("other_ns") == pytest.approx(0.5)
    sums = sum(series.rows[f"{name}_ns"] for name in wire.PHASES)
    assert (sums == series.rows["wall_ns"]).all()


def test_too_few_samples_leave_the_hosts_phases(tmp_path):
    series = RunView(launching(tmp_path, samples=DEVICE_STEPS - 1)).per_rank[0]
    assert series.clock == "host" and series.mean_ms("other_ns") == pytest.approx(16.0)


def test_a_stall_that_no_sample_saw_stays_where_the_host_saw_it(tmp_path):
    stalled = {"data": 80.0, "forward": 1.0, "backward": 2.0, "optimizer": 1.0, "other": 16.0}
    rows = RunView(launching(tmp_path, **stalled)).per_rank[0].rows
    last = {name: rows[f"{name}_ns"][-1] / 1e6 for name in wire.PHASES}
    assert last["data"] > 60 and last["backward"] == pytest.approx(12.0, abs=2.0)


def test_gputops_own_work_stays_the_hosts(tmp_path):
    own = {"forward": 1.0, "other": 99.0, "flags": wire.F_AGENT}
    rows = RunView(launching(tmp_path, **own)).per_rank[0].rows
    assert rows["other_ns"][-1] == 99_000_000


def test_no_steps_or_no_samples_are_no_device_clock(tmp_path):
    record = launching(tmp_path)
    steps, device = np.asarray(record.steps(0)), np.asarray(record.device(0))
    assert on_device_clock(steps[:0], device) is None
    assert on_device_clock(steps, device[:0]) is None


times = st.lists(st.floats(0, 1e10), min_size=6, max_size=6)


@given(times, times)
def test_divided_time_is_the_hosts_in_all(host_ns, device_ns):
    host, device = np.array([host_ns]), np.array([device_ns])
    divided = _divided(host, device)
    assert (divided >= -1e-3).all()
    if host.sum() >= 1:
        assert divided.sum() == pytest.approx(host.sum(), rel=1e-6, abs=1)
