"""Verdicts on made ratios: identical commands are never called slower, a slowdown is found."""

from __future__ import annotations

import os
import signal
import sys

import numpy as np
import pytest

from gputop import checking
from gputop.checking import Moment, Turn, _steps_in
from gputop.cli.happened.check import _ended_with_us, _measured
from gputop_agent import wire
from gputop_analysis.paired import ERROR, judge, judge_last


def ratios(rng, change: float, noise: float, count: int = 60) -> np.ndarray:
    """Pairs whose noise has heavy tails, as that of a busy machine; by the clock twice as much as
    without waits.
    """
    tails = rng.standard_t(3, (count, 2)) * noise * np.array([2.0, 1.0])
    return (1 + change) * np.exp(tails)


def test_identical_commands_are_never_slower():
    rng = np.random.default_rng(1)
    verdicts = [judge(ratios(rng, 0.0, 0.05), 4, 0.03).verdict for _ in range(200)]
    assert verdicts.count("slower") == 0
    assert verdicts.count("not slower") > 100


def test_at_the_threshold_itself_it_is_seldom_wrong():
    rng = np.random.default_rng(2)
    verdicts = [judge(ratios(rng, 0.03, 0.05), 4, 0.03).verdict for _ in range(300)]
    assert verdicts.count("slower") <= 12


@pytest.mark.parametrize("change", [0.08, 0.2])
def test_a_slowdown_is_found(change):
    rng = np.random.default_rng(3)
    verdicts = [judge(ratios(rng, change, 0.02), 4, 0.03).verdict for _ in range(100)]
    assert verdicts.count("slower") >= 95


def test_at_the_last_look_a_slowdown_is_found_that_noise_spreads_over_the_threshold():
    rng = np.random.default_rng(6)
    slower = [ratios(rng, 0.05, 0.05) for _ in range(100)]
    before = [judge(pairs, 5, 0.03, ERROR / 6).verdict for pairs in slower].count("slower")
    last = [judge_last(pairs, 5, 0.03, ERROR / 6) for pairs in slower]
    found = [judged for judged in last if judged.verdict == "slower"]
    assert len(found) >= 95 > before
    likely = [judged for judged in found if not judged.surely_beyond]
    assert likely and all(j.change.low > 0 and j.change.value > 0.03 for j in likely)


@pytest.mark.parametrize("noise", [0.02, 0.05, 0.15])
def test_at_the_last_look_identical_commands_are_not_slower_either(noise):
    rng = np.random.default_rng(7)
    verdicts = [judge_last(ratios(rng, 0.0, noise), 5, 0.03, ERROR / 6).verdict for _ in range(400)]
    assert verdicts.count("slower") <= 4


def test_at_the_last_look_a_change_far_below_the_threshold_is_seldom_taken_for_one_above():
    rng = np.random.default_rng(8)
    verdicts = [judge_last(ratios(rng, 0.01, 0.05), 5, 0.03, ERROR / 6) for _ in range(300)]
    assert [judged.verdict for judged in verdicts].count("slower") <= 15


@pytest.mark.parametrize("count", [0, 1, 3, 6])
def test_a_few_pairs_decide_nothing(count):
    judged = judge(np.full((count, 2), 1.5), 4, 0.03)
    assert judged.verdict == "undecided" and judged.change.high == float("inf")


def test_pairs_that_hang_together_count_less():
    rng = np.random.default_rng(4)
    walk = np.exp(np.convolve(rng.normal(0, 0.05, 120), np.ones(12) / 3, "valid"))
    alone = np.exp(rng.permutation(np.log(walk)))
    width = [judge(np.stack([one, one], 1), 4, 0.03).change for one in (walk, alone)]
    assert width[0].high - width[0].low > 1.5 * (width[1].high - width[1].low)


def test_where_waits_are_not_known_the_clock_decides():
    rng = np.random.default_rng(5)
    pairs = ratios(rng, 0.2, 0.01)
    pairs[:, 1] = np.nan
    judged = judge(pairs, 4, 0.03)
    assert judged.verdict == "slower" and judged.change == judged.clock


def test_a_slowdown_that_only_the_clock_sees_is_slower():
    """As of a program that fights itself for cores."""
    pairs = np.stack([np.full(40, 1.4), np.full(40, 1.0)], 1)
    assert judge(pairs, 4, 0.03).verdict == "slower"


def test_all_looks_together_are_as_seldom_wrong_as_one(monkeypatch):
    """At the threshold itself, with a look after each of twelve rounds."""
    rng = np.random.default_rng(6)
    clock = iter(range(10**6))
    monkeypatch.setattr("gputop.cli.happened.check.time.monotonic", lambda: float(next(clock)))
    judged = [
        _measured((ratios(rng, 0.03, 0.03, 8) for _ in range(12)), 0.03, 12.0) for _ in range(100)
    ]
    sure = [one.verdict for one in judged if one.surely_beyond]
    assert sure.count("slower") <= 5 and sure.count("not slower") <= 5
    assert all(one.change.low > 0 for one in judged if one.verdict == "slower")


def test_steps_are_counted_by_the_time_that_they_ran():
    """Turns of 100 ms with stops of 900 ms between; steps of 10 ms, three a record."""
    names = ("t_end_ns", "step", "flags")
    rows = np.zeros(9, [(name, "i8") for name in names])
    ran = 30 * np.arange(1, 10)
    rows["t_end_ns"] = (ran + 900 * ((ran - 1) // 100)) * 10**6
    rows["step"] = 3 * np.arange(1, 10) - 1
    turns = [
        Turn(Moment(0, 0), Moment(100 * 10**6, 40 * 10**6)),
        Turn(Moment(1000 * 10**6, 40 * 10**6), Moment(1100 * 10**6, 50 * 10**6)),
        Turn(Moment(2000 * 10**6, -1), Moment(2100 * 10**6, -1)),
    ]
    steps = _steps_in(rows, turns)
    assert steps[1] == pytest.approx(10)
    assert np.isnan(steps[0]) and np.isnan(steps[2]), "not known before the first record and after"
    assert turns[1].own_ns == 90 * 10**6 and np.isnan(turns[2].own_ns)
    rows["flags"][5] = wire.F_AGENT
    assert np.isnan(_steps_in(rows, turns)[1])


SPINS = """
import sys, torch
torch.set_num_threads(1)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), 1e-6)
data = torch.randn(32, 64)
while True:
    for _ in range(int(sys.argv[1])):
        model(data).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_commands_that_only_compute_take_short_turns(tmp_path, monkeypatch):
    monkeypatch.setattr(checking, "ROUND_S", 6.0)
    monkeypatch.setattr(checking, "SLICE_S", 0.2)
    monkeypatch.setattr(checking, "PAIRS_A_ROUND", 1)
    monkeypatch.setattr(checking, "FEWEST_ROUNDS", 1)
    (tmp_path / "spins.py").write_text(SPINS)
    sides = [
        checking.Side(
            checking.Work([sys.executable, "spins.py", str(count)], tmp_path), tmp_path, name
        )
        for name, count in (("base", 10), ("twice", 20))
    ]
    with _ended_with_us(*sides):
        (ratios,) = checking.rounds(*sides, until_s=0.0)
    assert len(ratios) >= 2
    assert 1.2 < np.median(ratios[:, 1]) < 3.3
    turns = [turn.slice for turn in sides[0]._turns[1:]]
    short = next(slice_ for slice_ in turns if turns.count(slice_) > 1)
    assert short > 1, "after one that showed that it never sleeps"
    assert turns.count(short) == pytest.approx(0.2 / checking.TURN_S)


def test_a_second_signal_leaves_neither_command_behind():
    calls = []

    class Side:
        def kill(self):
            calls.append("kill")
            os.kill(os.getpid(), signal.SIGTERM)

        def end(self):
            calls.append("end")

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit), _ended_with_us(Side(), Side()):  # type: ignore[arg-type]
        os.kill(os.getpid(), signal.SIGTERM)
    assert calls == ["kill", "kill", "end", "end"]
    assert signal.getsignal(signal.SIGTERM) is before
