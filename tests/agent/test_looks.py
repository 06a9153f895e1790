"""What the guest looks at now and then: debug aids, shapes of batches, the text of a line."""

import importlib
import sys
import tracemalloc

import pytest
import torch

from gputop_agent.injection import debugging, hello
from gputop_agent.runtime import frames, shapes, source, transport
from gputop_agent.runtime.session import session
from gputop_agent.timing import batch
from gputop_agent.watchers import tracers
from gputop_agent.watchers.graphs import anomaly


@pytest.fixture(autouse=True)
def fresh():
    session.reset()
    session.torch = torch
    batch.reset()
    yield
    batch.reset()
    session.reset()


def test_distinct_shapes_of_a_hundred_batches_are_counted():
    for step in range(100):
        batch.count(torch.zeros(4, 8 + step % 7))
    assert shapes.window.result is not None
    assert (
        shapes.window.result["distinct"] == 7 and shapes.window.result["batches"] >= shapes.ENOUGH
    )
    assert [4, 8] in shapes.window.result["examples"] or len(shapes.window.result["examples"]) == 4


def test_shapes_are_not_looked_at_between_the_windows():
    for step in range(1050):
        batch.count(torch.zeros(4, 8 if step < 100 else step))
    assert shapes.window.result is not None and shapes.window.result["distinct"] == 1


def test_anomaly_mode_and_a_profiler_are_seen_by_their_share_of_the_time():
    watch = debugging.DebugAids()
    for look in range(40):
        with torch.autograd.set_detect_anomaly(look % 2 == 0):
            watch.sample()
    session.debug.pop("anomaly_at")
    assert session.debug == {"anomaly": 0.5, "profiler": 0.0, "tracemalloc": False}


def test_the_mode_that_gputop_has_on_for_a_line_is_not_the_scripts(monkeypatch):
    """Where it looks for a NaN's line in each step, it told of its own mode as left on (HO16)."""
    monkeypatch.setattr(session, "torch", torch)
    monkeypatch.setattr(session, "compile_seen", False)
    watch, mode = debugging.DebugAids(), anomaly.AnomalyForward()
    mode.switch_on()
    try:
        assert torch.is_anomaly_enabled()
        for _ in range(40):
            watch.sample()
    finally:
        mode.switch_off()
    assert not torch.is_anomaly_enabled()
    assert session.debug["anomaly"] == 0.0
    with torch.autograd.set_detect_anomaly(True):
        for _ in range(40):
            watch.sample()
    assert session.debug["anomaly"] == 0.5


def test_what_was_on_at_the_first_step_may_be_off():
    tracemalloc.start()
    try:
        tracers.look_again()
        assert session.debug["tracemalloc"] is True
    finally:
        tracemalloc.stop()
    tracers.look_again()
    assert session.debug["tracemalloc"] is False


def test_the_only_place_that_has_a_word(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(source, "_MAX_LINES", 10**9)  # other tests have loaded much
    once, never, branches, far = (f"{word}(" for word in ("zyx", "yxw", "xwv", "wvu"))
    lines = [f"x = '{once}'  # {never}", *[f"y = '{branches}'"] * 2, f"z = '{far}'"]
    (tmp_path / "aided.py").write_text("\n".join([*lines, "\n" * 20, f"z = '{far}'"]))
    importlib.import_module("aided")
    found = [source.place_with(word) for word in (once, never, branches, far)]
    assert found == ["aided.py:1", None, "aided.py:2", None]
    assert source.place_with("x =", once) == "aided.py:1"
    assert source.place_with("x =", branches) is None


def test_a_tracer_of_the_training_thread_is_named():
    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        found = tracers.describe()
    finally:
        sys.settrace(before)
    assert found["trace"] == tracer.__module__ and found["tracemalloc"] is False


def tracer(frame, event, argument):
    return None


def test_a_site_has_the_text_of_its_line():
    here = sys._getframe()
    site = frames.site(here)
    assert frames.source(site) == "site = frames.site(here)"
    assert frames.source("nowhere.py:7") == ""


def test_a_short_run_tells_at_its_end_what_it_had_no_second_to_tell(monkeypatch):
    sent = []
    monkeypatch.setattr(
        transport, "send_event", lambda type_, **fields: sent.append((type_, fields))
    )
    monkeypatch.setattr(hello, "_sent", {"pid": 1})
    session.hello_sent = True
    for step in range(100):
        batch.count(torch.zeros(2, 8 + step % 30))
    hello.send_last()
    ((kind, fields),) = sent
    assert kind == "hello_update" and fields["shapes"]["distinct"] == 30
