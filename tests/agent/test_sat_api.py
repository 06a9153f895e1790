"""The public functions: nothing outside gputop, phases and numbers inside."""

import subprocess
import sys
import threading

import pytest

import gputop
from gputop_agent import api, wire
from gputop_agent.runtime import session as state
from gputop_agent.runtime import transport
from gputop_agent.timing import clock


@pytest.fixture
def guest(monkeypatch):
    """The guest's api is there and this thread trains; yields the events that were sent."""
    events = []
    monkeypatch.setattr(
        transport, "send_event", lambda type_, **fields: events.append({"type": type_, **fields})
    )
    monkeypatch.setitem(sys.modules, "gputop_agent.api", api)
    state.session.reset()
    clock.reset()
    api.reset()
    state.session.thread_ident = threading.get_ident()
    yield events
    state.session.reset()
    clock.reset()
    api.reset()


def test_outside_gputop_nothing_is_imported_and_nothing_happens():
    code = """
import sys
import gputop
before = set(sys.modules)
@gputop.phase("data")
def f(x, *, y=1):
    "doc"
    return x + y
assert f(1, y=2) == 3 and f.__doc__ == "doc" and f.__name__ == "f"
with gputop.phase("any"):
    gputop.log(loss=1.0)
gputop.step()
try:
    with gputop.phase("data"):
        raise KeyError(1)
except KeyError:
    heavy = [m for m in ("torch", "numpy", "textual", "json") if m in sys.modules]
    print(sorted(set(sys.modules) - before), heavy)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr, done.returncode) == ("[] []\n", "", 0)


@pytest.mark.parametrize(("name", "phase"), [("eval", state.EVAL), ("tokenize", state.OTHER)])
def test_a_phase_is_booked_and_summed_up(guest, name, phase):
    with gputop.phase(name), gputop.phase("checkpoint"):
        assert state.session.phase == state.CHECKPOINT
    with gputop.phase(name):
        assert state.session.phase == phase
    assert state.session.phase == state.OTHER and clock.totals[state.CHECKPOINT] > 0
    api.flush(100.0)
    found = {event["name"]: event for event in guest}
    assert found[name]["count"] == 2 and found[name]["phase"] == wire.PHASES[phase]
    assert found["checkpoint"]["total_ns"] <= found[name]["total_ns"]
    guest.clear()
    api.flush(200.0)
    assert guest == []  # nothing has changed


def test_one_phase_object_may_be_used_recursively_and_in_threads(guest):
    mark = gputop.phase("data")
    seen = []

    @mark
    def fall(n):
        seen.append(state.session.phase)
        return fall(n - 1) if n else 0

    fall(3)
    thread = threading.Thread(target=fall, args=(0,))
    thread.start()
    thread.join()
    assert seen == [state.DATA] * 4 + [state.OTHER] and state.session.phase == state.OTHER
    api.flush(100.0)
    assert guest[0]["count"] == 5


def test_an_exception_passes_through_and_the_phase_ends(guest):
    with pytest.raises(ValueError, match="mine"), gputop.phase("data"):
        raise ValueError("mine")
    assert state.session.phase == state.OTHER


def test_numbers_are_sent_at_most_ten_times_a_second(guest):
    for _ in range(1000):
        gputop.log(loss=2, text="no", wrong=object(), nested=[1])
    assert [event["values"] for event in guest] == [{"loss": 2.0}]


def test_failures_of_ours_never_reach_the_script(guest, monkeypatch):
    def broken(*_):
        raise RuntimeError("ours")

    for name in ("step", "log", "enter", "leave"):
        monkeypatch.setattr(api, name, broken)
    gputop.step()
    gputop.log(loss=1)
    with gputop.phase("data"):
        pass
    assert gputop.phase("x")(lambda: 5)() == 5


def test_names_are_bounded(guest):
    for index in range(1000):
        with gputop.phase(f"batch {index}"):
            pass
    api.flush(100.0)
    assert len(guest) == api._MAX_NAMES
