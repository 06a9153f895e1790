"""In which phase the training thread has its page faults."""

import mmap
import threading

import pytest

from gputop_agent import wire
from gputop_agent.runtime import paging
from gputop_agent.runtime.session import session

MANY_BYTES = 8 << 20


class Thread(threading.Thread):
    """Touches memory that was never touched, until it is told to end."""

    def __init__(self):
        super().__init__(daemon=True)
        self.ends = threading.Event()

    def run(self):
        while not self.ends.is_set():
            with mmap.mmap(-1, MANY_BYTES) as memory:
                memory.write(bytes(MANY_BYTES))


@pytest.fixture
def toucher():
    thread = Thread()
    thread.start()
    yield thread
    thread.ends.set()
    thread.join()


@pytest.mark.parametrize("phase", ["forward", "backward", "optimizer"])
def test_faults_are_those_of_the_phase(monkeypatch, toucher, phase):
    monkeypatch.setattr(session, "native_tid", toucher.native_id)
    monkeypatch.setattr(session, "phase", wire.PHASES.index(phase))
    counted = paging._faults_by_phase()
    assert set(counted) == {phase}
    assert counted[phase] > MANY_BYTES // mmap.PAGESIZE


def test_none_of_a_thread_that_is_gone(monkeypatch):
    monkeypatch.setattr(session, "native_tid", 2**22 + 1)
    assert paging._faults_by_phase() == {}
