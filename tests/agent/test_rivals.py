"""Other Python threads that use the CPU are measured and named; idle ones are not sent."""

import threading
import time

import pytest

from gputop_agent.runtime import session as state
from gputop_agent.runtime import transport
from gputop_agent.watchers.stacks import rivals


@pytest.fixture
def sent(monkeypatch):
    monkeypatch.setattr(state.session, "thread_ident", threading.get_ident())
    found = []
    monkeypatch.setattr(
        transport, "send_event", lambda type_, **fields: found.append({"type": type_, **fields})
    )
    return found


def spin(stop):
    while not stop.is_set():
        pass


def looked_at(target):
    """What two looks with samples between them say while ``target(stop)`` runs in a thread."""
    stop = threading.Event()
    thread = threading.Thread(target=target, args=(stop,), name="rival", daemon=True)
    watch = rivals.RivalWatch()
    thread.start()
    try:
        watch.look(time.monotonic())
        for _ in range(2):
            for _ in range(10):
                time.sleep(0.03)
                watch.sample()
            watch.look(time.monotonic())
    finally:
        stop.set()
        thread.join()


def test_a_busy_thread_is_named_with_its_line(sent):
    looked_at(spin)
    last = sent[-1]["threads"][0]
    assert (last["name"], last["function"]) == ("rival", "spin")
    assert "test_rivals.py:" in last["site"]
    assert 0.2 < last["cpu_share"] <= 1.1
    assert sent[-1]["period_ms"] > 200


def test_a_thread_that_waits_is_not_sent(sent):
    looked_at(lambda stop: stop.wait())
    assert sent == []


def test_the_training_thread_is_no_rival_of_itself(sent):
    assert threading.current_thread() not in rivals._others()
