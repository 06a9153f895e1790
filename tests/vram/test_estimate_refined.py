"""A quick answer that a trace refines while the user waits."""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from threading import Event

import pytest
from vram_log import MIB, training

from gputop import tracing
from gputop.cli import main
from gputop.feed import prediction, refinement
from gputop.feed.prediction import Prediction, Predictor
from gputop.render.rows import row_text
from gputop.tracing import BackgroundWatch
from gputop.widgets.history import predicted
from gputop_analysis import catalog
from gputop_analysis.vram.options import setup_of
from gputop_analysis.vram.question import estimate

MODEL = ["estimate", "--model", "llama-3.2-1b", "--tp", "2", "--no-calibration"]


@pytest.fixture
def traced(monkeypatch):
    """A trace that ends at once, and the words that it was asked with."""
    asked = []

    def trace(setup, *_args, **_options):
        asked.append(setup)
        return training(4, unit=64 * MIB)

    monkeypatch.setattr(tracing, "trace", trace)
    monkeypatch.setattr(refinement, "has_libraries", lambda: True)
    return asked


def test_the_quick_answer_comes_first_and_the_traced_one_beside_it(capsys, traced):
    assert main([*MODEL, "--wait", "20", "--json"]) == 0
    said = capsys.readouterr()
    found = json.loads(said.out)
    quick, both = [line for line in said.err.splitlines() if "tier" in line]
    assert found["tier"] == "trace" and len(traced) == 1
    assert "by the formula tier; tracing" in quick and "20 s at the most" in quick
    assert both.endswith("traced") and both.removeprefix("gputop: ") in found["notes"]


@pytest.mark.parametrize("words", [["--tier", "formula", "--wait", "9"], [], ["--wait", "0"]])
def test_nobody_waits_who_fixed_the_tier_or_does_not_watch(capsys, traced, words):
    assert main([*MODEL, *words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tier"] == "formula" and not traced


def test_a_trace_that_fails_or_takes_too_long_leaves_the_quick_answer(capsys, traced, monkeypatch):
    def failing(*_args, **_options):
        raise ValueError("no such operator")

    def endless(*_args, progress, **_options):
        while not progress.stopped:
            time.sleep(0.01)
        raise ValueError("killed")

    for trace, wait, why in ((failing, "9", "no such operator"), (endless, "0.05", "over 0.05 s")):
        monkeypatch.setattr(tracing, "trace", trace)
        assert main([*MODEL, "--wait", wait, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["tier"] == "formula" and why in found["notes"][-1]


def test_a_wait_that_is_no_number_is_one_clear_line(capsys):
    assert main([*MODEL, "--wait", "soon"]) == 2
    assert "--wait: takes seconds from 0 on, not 'soon'" in capsys.readouterr().err


def test_a_trace_beside_a_training_is_made_where_cores_are_idle(traced, monkeypatch):
    setup = setup_of(catalog.model("llama-3.2-1b"), {"seq": 512})
    came = Event()
    estimates = []

    def take(estimated):
        estimates.append(estimated)
        came.set()

    monkeypatch.setattr(refinement, "_idle_cores", lambda: 1.0)
    refinement.beside_training(setup, take)
    assert not traced
    monkeypatch.setattr(refinement, "_idle_cores", lambda: 8.0)
    refinement.beside_training(setup, take)
    assert came.wait(30) and estimates[0].peak.tier == "trace" and traced == [setup]


def test_a_trace_beside_a_training_has_the_lowest_priority():
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, text=True)
    try:
        BackgroundWatch(lambda _line: None).began(process)
        assert os.getpriority(os.PRIO_PROCESS, process.pid) == 19
    finally:
        process.communicate("\n")


def test_the_live_panel_says_what_the_trace_made_of_the_quick_answer():
    traced = Prediction(20.0, 24.9, "trace", False, None, "formula", 20.5, 25.4)
    assert row_text(predicted(traced, 100)) == (
        "on a GPU 24.9 GiB predicted, trace tier; 25.4 by the formula tier"
    )
    measured = traced._replace(measured_gib=20.2)
    assert row_text(predicted(measured, 100)) == (
        "predicted 20.0, measured 20.2 (+1.0 %), trace tier; 20.5 by the formula tier"
    )


def test_a_late_trace_of_what_is_no_longer_trained_is_not_shown(monkeypatch):
    estimated = estimate(setup_of(catalog.model("gpt2"), {"seq": 128}))
    started = []
    predictor = Predictor(lambda setup, take: started.append(take))
    monkeypatch.setattr(prediction, "_setup", lambda record: estimated.setup)
    monkeypatch.setattr(prediction, "_with_measured", lambda record, found: found)
    first = predictor.of(_Record("gpt2"))
    assert first.tier != "trace" and not first.quick and len(started) == 1
    started[0](replace(estimated, peak=replace(estimated.peak, tier="trace")))
    refined = predictor.of(_Record("gpt2"))
    assert (refined.tier, refined.quick) == ("trace", first.tier)
    second = predictor.of(_Record("gpt2-large"))
    started[0](replace(estimated, peak=replace(estimated.peak, tier="trace")))
    assert predictor.of(_Record("gpt2-large")) == second and not second.quick


class _Record:
    """A record of which only the first rank's greeting is read."""

    def __init__(self, model):
        self._model = model

    def ranks(self):
        return [0]

    def hello(self, _rank):
        return {"model": self._model}
