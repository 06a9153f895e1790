"""The ranges of the formula: what they would have told of each source, had it not been there."""

import pytest

from gputop_analysis import catalog
from gputop_analysis.vram.question import estimate
from gputop_analysis.vram.residuals import APART, AXES, axes, packaged, spread
from gputop_analysis.vram.setup import Lora, Setup

LLAMA = Setup(catalog.model("llama-3-8b"), lora=Lora())


def test_a_source_that_was_left_out_lies_in_the_range_of_the_others():
    """Nine of ten in the mean of all sources, and no source of ten runs under seven of ten."""
    common = {
        source: {
            words: errors for words, errors in runs.items() if not set(words.split(", ")) >= APART
        }
        for source, runs in packaged().items()
    }
    shares = {source: coverage(source, common) for source, runs in common.items() if runs}
    assert len(shares) >= 12 and all(runs for _, runs in shares.values())
    assert 0.85 <= sum(share for share, _ in shares.values()) / len(shares) <= 0.93
    assert all(share >= 0.7 for share, runs in shares.values() if runs >= 10)


def coverage(source, known):
    """The share of a source's runs inside the range that the others make, and their number."""
    inside = runs = 0
    for words, errors in known[source].items():
        range_ = spread(words.split(", "), source, known)
        inside += sum(range_.low <= error <= range_.high for error in errors)
        runs += len(errors)
    return inside / runs, runs


def test_sources_weigh_the_same_however_many_runs_they_have():
    one = {"a": {"x": [10.0] * 100}, "b": {"x": [-10.0]}}
    low, high = spread(("x",), residuals=one)[:2]
    assert (low, high) == pytest.approx((-10, 10), abs=0.1)
    assert spread(("x",), without="b", residuals=one)[:2] == (0.0, 10.0)


def test_what_was_never_measured_is_named_and_widens_the_range():
    known = next(iter(packaged()["litgpt"])).split(", ")
    assert len(known) == len(AXES) == len(axes(LLAMA))
    assert spread(known).uncalibrated == ()
    new = [*known[:-2], "rings", "a planet"]
    found = spread(new)
    assert found.uncalibrated == ("rings", "a planet")
    assert found.high - 4 > spread(known).high and found.low < spread(known).low


def test_open_lengths_raise_the_safe_end_and_a_word_closes_it():
    left_open, fixed = (estimate(LLAMA.but(lengths=one), "formula") for one in ("", "fixed"))
    varied = estimate(LLAMA.but(lengths="varied"))
    assert left_open.peak.reserved == fixed.peak.reserved < varied.peak.reserved
    assert left_open.at_most == varied.at_most > fixed.at_most
    assert varied.peak.tier == "formula"
    assert any("--lengths" in note for note in left_open.notes) and not varied.notes
    assert left_open.to_json()["needs_at_most_gib"] > fixed.to_json()["device_total_gib"]
