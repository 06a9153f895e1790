"""Snapshots of the allocator, with a made-up ``torch.cuda.memory``; ``bench/gpu.py`` has the real
one.
"""

import pickle
from types import SimpleNamespace

import pytest

from gputop_agent import wire
from gputop_agent.runtime import transport
from gputop_agent.runtime.session import session
from gputop_agent.watchers.memory import memory_history


class Cuda:
    """What of torch.cuda a snapshot needs."""

    def __init__(self):
        self.queued, self.calls, self.up, self.capturing = [], [], False, False
        self.memory = SimpleNamespace(
            _record_memory_history=lambda *args, **kwargs: self.calls.append((args, kwargs)),
            _dump_snapshot=self.dump,
        )
        self.full = False

    def dump(self, path):
        with open(path, "wb") as file:
            pickle.dump({"segments": []}, file)
            if self.full:
                raise OSError("no space left")

    def _lazy_call(self, function):
        self.queued.append(function)

    def start(self):
        self.up = True
        for function in self.queued:
            function()

    def is_initialized(self):
        return self.up

    def is_current_stream_capturing(self):
        return self.capturing


@pytest.fixture
def fake(tmp_path, monkeypatch):
    cuda, sent, observers = Cuda(), [], []
    core = SimpleNamespace(_cuda_attach_out_of_memory_observer=observers.append)
    torch = SimpleNamespace(cuda=cuda, _C=core)
    monkeypatch.setenv(wire.ENV_MEMORY_HISTORY, str(tmp_path / "memory"))
    monkeypatch.setattr(session, "torch", torch)
    monkeypatch.setattr(session, "cuda", True)
    monkeypatch.setattr(session, "boundary_listeners", [])
    monkeypatch.setattr(memory_history, "history", memory_history.AllocatorHistory())
    monkeypatch.setattr(memory_history.steps, "book_agent_time", lambda f, *args: f(*args))
    monkeypatch.setattr(transport, "send_event", lambda kind, **fields: sent.append(fields))
    memory_history.install(torch)
    return SimpleNamespace(cuda=cuda, sent=sent, observers=observers, folder=tmp_path / "memory")


def test_recording_begins_with_cuda_bounded_and_with_python_stacks(fake):
    assert fake.cuda.calls == []
    fake.cuda.start()
    assert fake.cuda.calls == [
        (("all",), {"stacks": "python", "max_entries": memory_history.MAX_ENTRIES})
    ]


def test_lack_of_memory_leaves_one_snapshot_however_often_it_happens(fake):
    fake.cuda.start()
    for _ in range(3):
        fake.observers[0](0, 1 << 40, 1 << 36, 1 << 20)
    memory_history.out_of_memory()
    (sent,) = fake.sent
    assert sent["reason"] == "out of memory" and sent["recorded"] is True
    (file,) = fake.folder.iterdir()
    assert (str(file), file.stat().st_size) == (sent["path"], sent["bytes"])


def test_a_snapshot_on_command_waits_for_the_end_of_a_step_without_capture(fake):
    fake.cuda.start()
    memory_history.request({"cmd": "memory_snapshot", "folder": str(fake.folder)})
    assert fake.sent == []
    fake.cuda.capturing = True
    for listener in list(session.boundary_listeners):
        listener(4, 0)
    assert fake.sent == []
    fake.cuda.capturing = False
    for listener in list(session.boundary_listeners):
        listener(5, 0)
    assert fake.sent[0]["reason"] == "asked" and session.boundary_listeners == []


def test_a_full_disk_and_no_cuda_are_said_and_leave_nothing(fake):
    memory_history.take("asked")
    assert fake.sent.pop()["error"] == "this process uses no CUDA"
    fake.cuda.start()
    fake.cuda.full = True
    memory_history.take("asked")
    assert fake.sent.pop()["error"] == "no space left"
    assert list(fake.folder.iterdir()) == []


def test_without_the_option_nothing_is_recorded(fake, monkeypatch):
    monkeypatch.delenv(wire.ENV_MEMORY_HISTORY)
    cuda = Cuda()
    memory_history.install(SimpleNamespace(cuda=cuda))
    assert cuda.queued == []
