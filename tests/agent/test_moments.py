"""When the training thread's stack is looked at."""

import os
import sys
from time import monotonic, sleep
from types import SimpleNamespace

import pytest

from gputop_agent.injection import thread
from gputop_agent.runtime import looks


class Training:
    """A loop of one C call that keeps the interpreter's lock for ``held_s`` and of work that gives
    it up for ``free_s``; whoever waits for the lock gets it where the call ends.
    """

    def __init__(self, held_s, free_s):
        self.held_s, self.free_s, self.now_s = held_s, free_s, 0.0

    def monotonic(self):
        return self.now_s

    def sleep(self, seconds):
        """Come back with the lock, the line of the call still the current one if it was held."""
        self.now_s += seconds
        at_s = self.now_s % (self.held_s + self.free_s)
        self.at_call = at_s < self.held_s
        if self.at_call:
            self.now_s += self.held_s - at_s


@pytest.mark.parametrize(
    ("held_s", "free_s"), [(0.002, 0.008), (0.015, 0.085), (0.03, 0.03), (0.04, 0.16)]
)
def test_looks_share_out_time_in_c_code_that_keeps_the_lock(monkeypatch, held_s, free_s):
    training = Training(held_s, free_s)
    monkeypatch.setattr(looks, "monotonic", training.monotonic)
    monkeypatch.setattr(looks, "sleep", training.sleep)
    moments, seen = looks.Moments(0.025), []
    while len(seen) < 10_000:
        training.sleep(moments.pause_s())
        moments.come()
        seen.append(training.at_call)
        training.now_s += 1e-4
        moments.plan(0.06)
    assert sum(seen) / len(seen) == pytest.approx(held_s / (held_s + free_s), rel=0.07)


def test_a_look_awaits_its_moment_and_the_interval_stays_the_users(monkeypatch):
    before = sys.getswitchinterval()
    seen = []
    monkeypatch.setattr(looks, "monotonic", lambda: 100.0)
    monkeypatch.setattr(
        looks, "sleep", lambda seconds: seen.append((seconds, sys.getswitchinterval()))
    )
    looks.await_moment(100.01)
    assert seen == [(pytest.approx(0.01), pytest.approx(looks.FINE_S, abs=1e-6))]
    assert sys.getswitchinterval() == before


def test_a_look_whose_moment_has_passed_is_made_at_once(monkeypatch):
    monkeypatch.setattr(looks, "monotonic", lambda: 100.0)
    monkeypatch.setattr(looks, "sleep", interrupted)
    looks.await_moment(99.9)


def test_the_end_waits_for_a_tick_that_goes_on(monkeypatch):
    """Else the interpreter's end meets the thread, and where that is in C++ ends the process."""
    monkeypatch.setattr(thread, "_agent", thread._Agent())
    monkeypatch.setattr(thread.atexit, "register", lambda *arguments: None)
    over = []

    class Loop:
        moments = SimpleNamespace(pause_s=lambda: 0.01, plan=lambda period_s: None)

        def tick(self):
            over.append(False)
            sleep(0.2)
            over[-1] = True

        def period_s(self):
            return 0.01

    monkeypatch.setattr(thread, "ThreadLoop", Loop)
    thread.start()
    while not over:
        sleep(0.01)
    thread.stop()
    assert all(over) and not thread._agent.pid


def test_beside_busy_threads_ticks_are_a_quarter_as_frequent():
    loop = thread.ThreadLoop()
    usual_s = loop.period_s()
    loop.rivals = SimpleNamespace(busy=True)
    assert loop.period_s() == pytest.approx(4 * usual_s)
    loop._started -= 3600
    assert loop.period_s() <= thread._IDLE_S  # commands are answered all the same


def test_an_interval_that_the_user_sets_meanwhile_stays(monkeypatch):
    before = sys.getswitchinterval()
    monkeypatch.setattr(looks, "sleep", lambda seconds: sys.setswitchinterval(0.002))
    try:
        looks.await_moment(monotonic() + 0.1)
        assert sys.getswitchinterval() == pytest.approx(0.002)
    finally:
        sys.setswitchinterval(before)


def interrupted(seconds):
    raise KeyboardInterrupt


def test_an_exception_while_asleep_gives_the_interval_back(monkeypatch):
    before = sys.getswitchinterval()
    monkeypatch.setattr(looks, "sleep", interrupted)
    with pytest.raises(KeyboardInterrupt):
        looks.await_moment(monotonic() + 0.1)
    assert sys.getswitchinterval() == before


def test_a_child_forked_while_the_agent_sleeps_has_the_users_interval(monkeypatch):
    before = sys.getswitchinterval()
    codes = []

    def fork(seconds):
        pid = os.fork()
        if pid == 0:
            looks.restore()  # as ``thread.reset`` does
            os._exit(0 if sys.getswitchinterval() == before else 1)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    monkeypatch.setattr(looks, "sleep", fork)
    looks.await_moment(monotonic() + 0.1)
    assert codes == [0]
