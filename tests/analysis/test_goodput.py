"""Goodput: the session's time by part, exact, with restarts, checkpoints and hangs. Energy and
prices on the side.
"""

import pytest
from analysis_support import T0, Builder
from hypothesis import given, settings
from hypothesis import strategies as st

from gputop_analysis.energy import energy
from gputop_analysis.goodput import PARTS, goodput
from gputop_analysis.prices import price_of, run_usd_per_hour
from gputop_analysis.view import RunView

SECOND = 10**9


def attempt(builder, steps, number=0, gap_s=0.0):
    """``steps`` steps of 1 s, the first of 3 s, after a gap."""
    written = len(builder.open().steps(0)) if number else 0
    builder.event(
        "rank_start", rank=0, attempt=number, record_index=written, t_ns=builder.clock.get(0, T0)
    )
    builder.clock[0] = builder.clock.get(0, T0) + int(gap_s * SECOND)
    builder.next_step[0] = -1
    for step in range(steps):
        builder.step(forward=1000.0 if step else 3000.0)


def seconds(found):
    return {name: ns / SECOND for name, ns in found.parts_ns.items() if ns}


def test_a_plain_run_is_init_first_step_productive_and_shutdown(tmp_path):
    builder = Builder(tmp_path)
    attempt(builder, 11, gap_s=20)
    last = builder.clock[0]
    builder.end()
    builder.state["ended_ns"] = last + 2 * SECOND
    builder.writer.write_state(builder.state)
    found = goodput(builder.open())
    assert seconds(found) == {"init": 20, "first_step": 3, "productive": 10, "shutdown": 2}
    assert found.goodput == pytest.approx(10 / 35)


def test_a_restart_loses_what_came_after_the_last_checkpoint(tmp_path):
    builder = Builder(tmp_path)
    attempt(builder, 11)
    builder.event("checkpoint", rank=0, step=6, duration_ms=5, t_ns=T0 + 9 * SECOND)
    attempt(builder, 21, number=1, gap_s=30)
    builder.end()
    found = goodput(builder.open())
    assert found.restarts == 1
    assert seconds(found) == {"first_step": 6, "lost_work": 4, "restart": 30, "productive": 6 + 20}


def test_without_a_checkpoint_all_of_the_first_attempt_is_lost(tmp_path):
    builder = Builder(tmp_path)
    attempt(builder, 11)
    attempt(builder, 11, number=1, gap_s=1)
    builder.end()
    assert seconds(goodput(builder.open())) == {
        "first_step": 6,
        "lost_work": 10,
        "restart": 1,
        "productive": 10,
    }


def test_a_hang_counts_from_the_last_step(tmp_path):
    builder = Builder(tmp_path)
    attempt(builder, 11)
    last = builder.clock[0]
    builder.event("hang_suspected", ranks=[0], silent_s=30, limit_s=30, t_ns=last + 30 * SECOND)
    builder.end()
    builder.state["ended_ns"] = last + 100 * SECOND
    builder.writer.write_state(builder.state)
    assert seconds(goodput(builder.open())) == {"first_step": 3, "productive": 10, "hang": 100}


@settings(max_examples=20)
@given(
    st.lists(st.tuples(st.integers(1, 8), st.floats(0, 40)), min_size=1, max_size=4),
    st.lists(st.tuples(st.floats(0, 100), st.floats(0, 20), st.booleans()), max_size=4),
    st.lists(st.floats(0, 100), max_size=4),
)
def test_parts_add_up_to_the_session(tmp_path_factory, attempts, hangs, checkpoints):
    builder = Builder(tmp_path_factory.mktemp("run"))
    for number, (steps, gap_s) in enumerate(attempts):
        attempt(builder, steps, number, gap_s)
    for at, silent_s, over in hangs:
        builder.event("hang_suspected", silent_s=silent_s, t_ns=T0 + int((at + silent_s) * SECOND))
        if over:
            builder.event("hang_over", t_ns=T0 + int((at + silent_s + 5) * SECOND))
    for at in checkpoints:
        builder.event("checkpoint", t_ns=T0 + int(at * SECOND))
    builder.end()
    found = goodput(builder.open())
    assert tuple(found.parts_ns) == tuple(PARTS)
    assert sum(found.parts_ns.values()) == found.session_ns
    assert all(value >= 0 for value in found.parts_ns.values()), found


def test_no_step_no_goodput(tmp_path):
    assert goodput(Builder(tmp_path).open()) is None


def test_synthetic_energy_per_sample_from_the_counters(tmp_path):
    builder = Builder(tmp_path)
    builder.state["gpus"] = [
        {"index": 0, "name": "NVIDIA H200"},
        {"index": 1, "name": "NVIDIA H200", "ours": False},
    ]
    builder.writer.write_state(builder.state)
    for _ in range(300):
        builder.step(forward=100.0, samples=32)
    for tick in range(31):
        for index, watts in ((0, 600), (1, 75)):
            builder.sample(
                "gpu",
                t_ns=T0 + tick * SECOND,
                index=index,
                energy_mj_total=10**9 + tick * watts * 1000,
            )
    found = energy(RunView(builder.open()))
    assert found is not None and found.gpus == 1
    assert found.watts == pytest.approx(600)
    assert found.joules_per_sample == pytest.approx(600 / 320)
    assert found.joules_per_token is None


def test_energy_abstains_without_a_counter(tmp_path):
    builder = Builder(tmp_path)
    builder.state["gpus"] = [{"index": 0, "name": "NVIDIA T4"}]
    builder.writer.write_state(builder.state)
    for tick in range(31):
        builder.step(forward=1000.0)
        builder.sample("gpu", t_ns=T0 + tick * SECOND, index=0, energy_mj_total=-1)
    assert energy(RunView(builder.open())) is None


def test_prices_belong_to_the_gpu_the_driver_names(tmp_path):
    for name in ("NVIDIA H200", "NVIDIA A100-SXM4-80GB", "Tesla T4", "NVIDIA L4"):
        price = price_of(name)
        assert price is not None and price.low <= price.usd_per_hour <= price.high, name
    assert price_of("NVIDIA RTX A1000") is None
    builder = Builder(tmp_path)
    builder.state["gpus"] = [{"index": i, "name": "NVIDIA H200", "ours": i < 2} for i in range(8)]
    builder.writer.write_state(builder.state)
    assert run_usd_per_hour(builder.open()) == pytest.approx(
        2 * price_of("NVIDIA H200").usd_per_hour
    )
    builder.state["gpus"] = [
        {"index": 0, "name": "NVIDIA H200"},
        {"index": 1, "name": "NVIDIA NoSuch"},
    ]
    builder.writer.write_state(builder.state)
    assert run_usd_per_hour(builder.open()) is None
