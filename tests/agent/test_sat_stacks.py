"""The sampler and the frames' names, on real threads that wait in known lines."""

import sys
import threading

import pytest

from gputop_agent.runtime import frames, interrupts, transport
from gputop_agent.runtime import session as state
from gputop_agent.timing.step_state import open_step
from gputop_agent.watchers.stacks import dump, stacks

PACKAGE = "/x/site-packages/trainer_lib/loop.py"
SOURCE = "def fetch(started, gate):\n    started.set()\n    gate.wait()\n"


def package_function():
    """A function whose code lies in an installed package."""
    scope = {}
    exec(compile(SOURCE, PACKAGE, "exec"), scope)
    return scope["fetch"]


@pytest.fixture
def waiting(monkeypatch):
    """A function that runs ``target(started, gate)`` as the training thread and returns once it
    waits.
    """
    monkeypatch.setattr(state, "session", state.session)
    threads, gate = [], threading.Event()

    def run(target):
        started = threading.Event()
        thread = threading.Thread(target=target, args=(started, gate), name="trainer")
        thread.start()
        threads.append(thread)
        assert started.wait(10)
        state.session.thread_ident = thread.ident
        return thread

    yield run
    gate.set()
    for thread in threads:
        thread.join()
    state.session.reset()


@pytest.fixture
def sent(monkeypatch):
    found = []
    monkeypatch.setattr(
        transport, "send_event", lambda type_, **fields: found.append({"type": type_, **fields})
    )
    return found


def get_batch(started, gate):
    started.set()
    gate.wait()


def through_package(started, gate):
    package_function()(started, gate)


def test_the_line_of_user_code_is_named_with_its_caller_and_what_it_waits_in(
    waiting, sent, monkeypatch
):
    waiting(get_batch)
    now = [0.0]
    monkeypatch.setattr(stacks, "monotonic", lambda: now[0])
    state.session.phase = state.DATA
    sampler = stacks.StackSampler()
    for _ in range(10):
        sampler.sample()
    now[0] = 0.5
    state.session.step += 1
    sampler.flush()
    (event,) = sent
    line = get_batch.__code__.co_firstlineno + 2
    assert event["phase"] == "data" and event["total"] == 10 and event["period_ms"] == 50
    (sample,) = event["samples"]
    assert (
        sample["site"].endswith(f"test_sat_stacks.py:{line}") and sample["function"] == "get_batch"
    )
    assert (
        sample["count"] == 10 and "threading.py" in sample["caller"] and "wait" in sample["inside"]
    )


@pytest.mark.parametrize(
    ("forwards", "pending", "after"), [(0, False, True), (1, True, True), (1, False, False)]
)
def test_what_lies_between_an_update_and_the_next_forward_is_marked(
    waiting, sent, monkeypatch, forwards, pending, after
):
    waiting(get_batch)
    monkeypatch.setattr(open_step, "forwards", forwards)
    monkeypatch.setattr(open_step, "pending", pending)
    state.session.phase = state.OTHER
    sampler = stacks.StackSampler()
    sampler.sample()
    sampler.flush()
    state.session.step += 1
    sampler.flush()
    ((sample,),) = (event["samples"] for event in sent if event["samples"])
    assert sample.get("after_update", False) is after


def test_looks_of_a_step_that_never_ends_are_not_counted(waiting, sent):
    waiting(get_batch)
    state.session.phase = state.DATA
    sampler = stacks.StackSampler()
    for _ in range(10):
        sampler.sample()
    state.session.step += 1
    for _ in range(50):
        sampler.sample()
    sampler.flush()
    assert [event["total"] for event in sent] == [10]


@pytest.mark.parametrize(("age_s", "looks", "period_ms"), [(0.0, 20, 100), (61.0, 10, 200)])
def test_what_the_model_takes_is_looked_at_less_often_and_scaled(
    waiting, sent, monkeypatch, age_s, looks, period_ms
):
    waiting(get_batch)
    now = [0.0]
    monkeypatch.setattr(stacks, "monotonic", lambda: now[0])
    sampler = stacks.StackSampler()
    now[0] = age_s
    sampler.flush()
    state.session.phase = state.FORWARD
    for _ in range(40):
        sampler.sample()
    state.session.phase = state.OPTIMIZER
    for _ in range(40):
        sampler.sample()
    now[0] += 4.0
    state.session.step += 1
    sampler.flush()
    assert [event["phase"] for event in sent] == ["forward", "optimizer"]
    for event in sent:
        assert (event["total"], event["period_ms"]) == (looks, period_ms)


def stack_of(thread):
    return frames.still(sys._current_frames()[thread.ident])


def test_below_the_users_line_the_package_is_named(waiting):
    thread = waiting(through_package)
    site, function, caller, inside = stacks.describe(stack_of(thread))
    assert "threading.py" in caller
    assert function == "through_package" and "test_sat_stacks.py" in site
    assert inside == "trainer_lib/loop.py:3 fetch"


def test_without_a_line_of_the_users_the_package_is_the_site(waiting):
    thread = waiting(package_function())
    site, function, caller, inside = stacks.describe(stack_of(thread))
    assert (site, function) == ("trainer_lib/loop.py:3", "fetch")
    assert "threading.py" in caller and "threading.py" in inside


def rows_by_hand(rows):
    """Two loops and a comprehension; yields its frame at marked places."""
    frame = sys._getframe()
    seen = [frames.still(frame)]
    for row in rows:
        for value in row:
            seen.append(frames.still(frame))
        seen.append(frames.still(frame))
    seen.append(frames.still(frame))
    [seen.append(frames.still(sys._getframe())) for _ in range(1)]
    return seen


def test_a_path_names_the_loops_around_a_line():
    outside, inner, outer, after, comprehension = (
        [label for label in stacks.path_of(stack) if label.startswith(stacks.LOOP)][-2:]
        for stack in rows_by_hand([[1]])
    )
    first = rows_by_hand.__code__.co_firstlineno
    place = "loop tests/agent/test_sat_stacks.py:%d rows_by_hand"
    around = [label for label in outside if "rows_by_hand" in label]
    assert around == [] and [label for label in after if "rows_by_hand" in label] == []
    assert [place % (first + 4), place % (first + 5)] == [in_tests(label) for label in inner]
    assert in_tests(outer[-1]) == place % (first + 4)
    assert comprehension[-1].partition(":")[2].startswith(str(first + 9))


def in_tests(label):
    """The label with the file as seen from the repository's root."""
    file, _, rest = label[len(stacks.LOOP) :].partition(":")
    return f"{stacks.LOOP}tests/agent/{file.rpartition('/')[2]}:{rest}"


def test_a_stack_stays_as_it_was_while_it_is_described():
    def lines():
        frame = sys._getframe()
        still = frames.still(frame)
        return frame.f_lineno, still[0].f_lineno

    now, then = lines()
    assert now == then + 1


def test_origins():
    import torch

    assert frames.origin(torch.nn.Linear.forward.__code__.co_filename) == frames.TORCH
    assert frames.origin(threading.__file__) == frames.STDLIB
    assert frames.origin(frames.__file__) == frames.AGENT
    assert frames.origin("<frozen importlib._bootstrap>") == frames.STDLIB
    assert frames.origin(pytest.__file__) == frames.LIBRARY
    assert frames.origin("/home/me/train.py") == frames.USER
    assert frames.origin("numpy/random/_bounded_integers.pyx") == frames.LIBRARY
    assert frames.origin(interrupts.HIDDEN_FILE) == frames.AGENT
    assert (
        frames.short_name(torch.nn.Linear.forward.__code__.co_filename)
        == "torch/nn/modules/linear.py"
    )


def test_events_become_rarer_as_the_run_gets_long(waiting, sent, monkeypatch):
    waiting(get_batch)
    now = [0.0]
    monkeypatch.setattr(stacks, "monotonic", lambda: now[0])
    sampler = stacks.StackSampler()
    for second in range(3600):
        now[0] = float(second)
        sampler.sample()
        state.session.step += 1
        sampler.flush_if_due()
    assert 120 < len(sent) < 400
    assert sum(event["total"] for event in sent) > 3500


def test_the_dump_shows_the_training_thread_first(waiting, sent):
    waiting(get_batch)
    dump.send("test")
    (event,) = sent
    first = event["threads"][0]
    assert event["type"] == "stack_dump" and event["reason"] == "test"
    assert first["training"] and first["name"] == "trainer"
    assert any("get_batch" in frame for frame in first["frames"])
    assert sum(t["training"] for t in event["threads"]) == 1
