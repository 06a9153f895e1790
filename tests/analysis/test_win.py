"""What a finding's fix is worth, where it is about all steps and where about the newer ones."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from gputop_analysis.model import Finding, Since
from gputop_analysis.report.winning import saving, win_words
from gputop_analysis.win import win_of

FINDING = Finding("CE11", "x", "high", "x", "x", "x", recoverable_ms_per_step=10.0)
SINCE = replace(FINDING, since=Since(540, 20.0))
SUMMARY = SimpleNamespace(
    ranks=[SimpleNamespace(step_time_mean_ms=11.0)], steps=600, state="ended", total_steps=None
)
"""600 steps: 540 of 10 ms, then 60 of 20."""


def test_a_win_of_all_steps_is_of_their_mean() -> None:
    assert win_of(SUMMARY, FINDING) == (11.0, 1.0, 0)


def test_a_win_of_the_newer_steps_is_of_theirs() -> None:
    """Taken from the mean of all steps it would be 11 times as fast."""
    win = win_of(SUMMARY, SINCE)

    assert win is not None
    assert win.factor == pytest.approx(2.0)
    assert win_words(win) == "2.0x faster possible: 20.0 to 10.0 ms a step since step 540"


def test_a_run_that_ended_would_have_saved_it_in_those_steps_alone() -> None:
    report = SimpleNamespace(
        summary=SUMMARY, view=SimpleNamespace(record=SimpleNamespace(manifest={}, hosts={}))
    )
    win = win_of(SUMMARY, SINCE)

    words = saving(report, win)

    assert words == "would have saved 0.6 s over the 60 steps since step 540"
