"""When windows open, how a pattern of updates is found, and how counted time is divided."""

import pytest

from gputop_agent import wire
from gputop_agent.runtime.session import BACKWARD, EVAL, FORWARD, OTHER
from gputop_agent.timing import clock, schedule, shares, update_pattern


def windows(seed, block, until):
    found, step = [], -1
    while (step := schedule.window_after(seed, step, block)) < until:
        found.append(step)
    return found


@pytest.mark.parametrize("block", [16, 32, 256])
def test_each_block_has_one_window(block):
    found = windows(7, block, 100 * block)
    assert [step // block for step in found] == list(range(100))


@pytest.mark.parametrize("block", [32, 128])
def test_a_rank_with_shorter_blocks_opens_the_windows_of_the_others_too(block):
    assert set(windows(3, block, 5000)) <= set(windows(3, block // 2, 5000))


def test_windows_fall_at_random_places_of_a_rhythm():
    found = windows(1, 64, 64 * 2000)
    counts = [sum(step % 5 == rest for step in found) for rest in range(5)]
    assert min(counts) > 300  # 400 each, give or take five standard deviations


def test_runs_differ_and_ranks_do_not():
    assert windows(1, 64, 6400) != windows(2, 64, 6400)
    assert windows(1, 64, 6400) == windows(1, 64, 6400)


def test_a_block_takes_no_longer_than_asked():
    assert schedule.block_of(1_000_000, 100_000_000) == 64
    assert schedule.block_of(50_000_000, 100_000_000) == schedule.SMALLEST_BLOCK


END = update_pattern.STEP_ENDS


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        ((5, END), ((5,), (True,))),
        ((5, 6, END), ((5, 6), (False, True))),
        ((5, END, 5, END, 5, 6, END), ((5, 5, 5, 6), (True, True, False, True))),
    ],
)
def test_patterns(step, expected):
    assert update_pattern.find_pattern(step * 10) == expected


def test_no_pattern():
    assert (
        update_pattern.find_pattern((5, END, 6, END, 6, END, 5, END) + (5, END, 6, 6, END) * 2)
        is None
    )
    assert update_pattern.find_pattern((5, END, 5)) is None
    assert update_pattern.find_pattern(()) is None


@pytest.fixture
def totals():
    before = clock.totals[:]
    clock.totals[:] = [0] * len(before)
    yield clock.totals
    clock.totals[:] = before


def step(**phases):
    delta = [0] * len(clock.totals)
    for name, ns in phases.items():
        delta[wire.PHASES.index(name)] = ns
    delta[clock.SAMPLES] = 4
    return delta


def test_time_is_divided_to_the_nanosecond(totals):
    known = shares.Shares()
    for _ in range(8):
        known.add_step(step(forward=300_001, backward=600_000, other=99_999))
    known.divide(10_000_003, [1_000_000] * 10)
    assert sum(totals[: clock.N_PHASES]) == 10_000_003
    assert totals[FORWARD] == pytest.approx(3_000_010, abs=10)
    assert totals[BACKWARD] == pytest.approx(6_000_000, abs=10)


def test_the_ratio_is_one_of_sums(totals):
    known = shares.Shares()
    known.add_step(step(forward=100_000, other=100_000))
    known.add_step(step(forward=300_000))
    known.divide(1_000_000, [200_000] * 5)
    assert totals[FORWARD] == 800_000  # not the mean of 50 and 100 %


def test_long_steps_are_divided_as_long_steps_were(totals):
    known = shares.Shares()
    for _ in range(8):
        known.add_step(step(forward=1_000_000))
    known.add_step(step(forward=1_000_000, eval=9_000_000))
    assert known.divide(13_000_000, [1_000_000] * 3 + [10_000_000]) == wire.F_EVAL
    assert totals[EVAL] == pytest.approx(9_000_000, abs=10)


def test_what_made_a_step_long_is_other_while_nothing_is_known(totals):
    known = shares.Shares()
    for _ in range(8):
        known.add_step(step(forward=1_000_000))
    assert known.divide(12_000_000, [1_000_000, 1_000_000, 10_000_000]) == 0
    assert (totals[FORWARD], totals[OTHER]) == (3_000_000, 9_000_000)


def test_counts_keep_their_fractions(totals):
    known = shares.Shares()
    for samples in (4, 4, 3):
        known.ordinary.add(_with_samples(samples), 1)
    for _ in range(300):
        known.count(1)
    assert totals[clock.SAMPLES] == pytest.approx(1100, abs=1)


def _with_samples(samples):
    delta = step(forward=1)
    delta[clock.SAMPLES] = samples
    return delta
