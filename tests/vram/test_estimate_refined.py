"""A quick answer that a trace refines while the user waits."""

import json
import time

import pytest
from vram_log import MIB, training

from gputop import tracing
from gputop.cli import estimate_refined, main

MODEL = ["estimate", "--model", "llama-3.2-1b", "--tp", "2", "--no-calibration"]


@pytest.fixture
def traced(monkeypatch):
    """A trace that ends at once, and the words that it was asked with."""
    asked = []

    def trace(setup, *_args, **_options):
        asked.append(setup)
        return training(4, unit=64 * MIB)

    monkeypatch.setattr(tracing, "trace", trace)
    monkeypatch.setattr(estimate_refined, "_has_libraries", lambda: True)
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
