"""How often the screen looks: at once while a training starts, then as its CPU time allows."""

from types import SimpleNamespace

import pytest
from tui_pilot import press, settle
from tui_support import FixedClock, StillFeed

from gputop.app import Source
from gputop.app.application import GputopApp
from gputop.app.rhythm import FAST, FIRST_S, SLOW, SLOWEST, Rhythm

LIVE = SimpleNamespace(ended=False, position=None)
ENDED = SimpleNamespace(ended=True, position=None)


class Clock:
    """Time and CPU that the test moves."""

    def __init__(self, cpu_s: float = 0.0):
        self.at_s, self.used_s = 0.0, cpu_s

    def monotonic(self) -> float:
        return self.at_s

    def cpu_s(self) -> float:
        return self.used_s

    def now_ns(self) -> int:
        return int(self.at_s * 1e9)


def looked(
    rhythm: Rhythm, clock: Clock, cost_s: float, until_s: float, snapshot=LIVE
) -> list[float]:
    """The times of the looks, each of which costs so much CPU."""
    times = []
    while clock.at_s < until_s:
        times.append(clock.at_s)
        clock.used_s += cost_s
        rhythm.measure(snapshot)
        clock.at_s += rhythm.period
    return times


def test_what_the_imports_cost_delays_no_look():
    clock = Clock()
    rhythm = Rhythm(clock)
    clock.used_s = 0.5  # imports and the first frame
    rhythm.measure(LIVE)
    assert rhythm.period == FAST


def test_a_starting_training_is_followed_twice_a_second_and_a_running_one_within_its_share():
    clock = Clock()
    rhythm = Rhythm(clock)
    times = looked(rhythm, clock, cost_s=0.1, until_s=120.0)
    first = [time for time in times if time < FIRST_S]
    assert len(first) == pytest.approx(FIRST_S / FAST, abs=2)
    later = [time for time in times if time > 60.0]
    assert 0.1 * len(later) / 60 == pytest.approx(0.045, rel=0.1)


def test_looks_that_cost_nothing_come_at_the_fixed_periods():
    for snapshot, period in ((LIVE, FAST), (ENDED, SLOW)):
        clock = Clock()
        rhythm = Rhythm(clock)
        looked(rhythm, clock, cost_s=0.0, until_s=120.0, snapshot=snapshot)
        assert rhythm.period == pytest.approx(period)


def test_a_look_comes_at_the_latest_after_the_longest_period():
    clock = Clock()
    rhythm = Rhythm(clock)
    looked(rhythm, clock, cost_s=5.0, until_s=300.0)
    assert rhythm.period == pytest.approx(SLOWEST, rel=0.01)


async def test_snapshots_that_keys_asked_for_leave_one_rhythm(running, monkeypatch):
    """Each page that was opened once left a chain of ticks of its own behind."""
    app = GputopApp(Source(running.run_dir, "live"), FixedClock(), StillFeed(running))
    pending = []
    set_timer = app.set_timer

    def counted(seconds, callback=None, **options):
        timer = set_timer(3600.0, callback, **options)
        if callback == app.tick:
            pending.append(timer)
        return timer

    monkeypatch.setattr(app, "set_timer", counted)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(app, pilot)
        await press(app, pilot, "d", "escape", "n", "escape", "b", "escape")
        assert len(pending) > 3
        assert sum(timer._task is not None for timer in pending) == 1
