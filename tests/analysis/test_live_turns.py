"""A live view asks settled checks in turn, and still says what one that asks all of
them would say.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
from analysis_support import Builder
from hypothesis import given, settings
from hypothesis import strategies as st

from gputop_agent import wire
from gputop_analysis.findings import CATALOGUE
from gputop_analysis.findings.live import LiveFindings
from gputop_analysis.findings.registry import as_list
from gputop_analysis.findings.turns import EVERY, SETTLED_AFTER, Turns
from gputop_analysis.live_ranks import live_ranks
from gputop_analysis.spikes import EARLY, STRIDE, WINDOW, stand_outs
from gputop_analysis.stats import mad_sigma
from gputop_analysis.view import RunView

STAGES = {
    "clean": {"forward": 5.0, "backward": 9.0},
    "input": {"forward": 5.0, "backward": 9.0, "data": 12.0},
    "host": {"forward": 5.0, "backward": 9.0, "other": 6.0, "eval": 5.0},
}


def said_by_all(view):
    return [one for spec in CATALOGUE.values() for one in as_list(spec.check(view))]


@pytest.mark.parametrize(
    "before, after", [("clean", "input"), ("input", "host"), ("host", "clean")]
)
def test_in_any_four_ticks_a_view_says_what_all_checks_say(tmp_path, before, after):
    build = Builder(tmp_path / "r")
    build.hello(dataloader={"num_workers": 0, "batch_size": 8})
    build.steps(150, **STAGES[before])
    record, turns = build.open(), Turns()
    for _ in range(SETTLED_AFTER):
        turns.look(RunView(record, 100, live=True))
    build.steps(200, **STAGES[after])
    record.refresh()
    for _ in range(EVERY):
        said = turns.look(RunView(record, 100, live=True))
    assert said == said_by_all(RunView(record, 100, live=True))


def test_a_settled_check_is_asked_once_in_four_ticks_and_a_fact_always(tmp_path, monkeypatch):
    asked = []
    for id in ("IN01", "NU01"):
        spec = CATALOGUE[id]
        counted = replace(
            spec, check=lambda view, spec=spec: asked.append(spec.id) or spec.check(view)
        )
        monkeypatch.setitem(CATALOGUE, id, counted)
    build = Builder(tmp_path / "r")
    build.steps(60, forward=5.0)
    record, turns = build.open(), Turns()
    for _ in range(SETTLED_AFTER):
        turns.look(RunView(record, live=True))
    assert asked.count("NU01") == SETTLED_AFTER
    assert SETTLED_AFTER // 2 <= asked.count("IN01") <= SETTLED_AFTER // 2 + 1, (
        "silent: at every other tick"
    )
    asked.clear()
    for _ in range(3 * EVERY):
        turns.look(RunView(record, live=True))
    assert asked.count("IN01") == 3 and asked.count("NU01") == 3 * EVERY


def every_window(values, k=8.0, min_relative=0.2):
    """The rule of ``stand_outs`` with nothing left out."""
    found = []
    for i in range(EARLY[0][0], len(values)):
        begin = next((b for b, end in EARLY if b <= i < end), None)
        start = (i - WINDOW) // STRIDE * STRIDE
        before = values[:begin] if begin is not None else values[start : start + WINDOW]
        level = np.median(before)
        near = np.median(values[i - STRIDE : i])
        jumps = values[i] > near + min_relative * abs(near)
        if (
            jumps
            and values[i] > level + k * mad_sigma(before)
            and values[i] > level + min_relative * abs(level)
        ):
            found.append(i)
    return found


@settings(max_examples=40)
@given(
    st.integers(0, 10_000),
    st.sampled_from([20, 31, 49, 100, 109, 110, 111, 260]),
    st.sampled_from([-3.0, 0.0, 0.5, 4.0]),
    st.floats(0.01, 2.0),
    st.sampled_from([0.2, 0.5, 1.0]),
)
def test_values_that_cannot_stand_out_are_rightly_not_looked_at(
    seed, count, level, noise, min_relative
):
    values = level + noise * np.random.default_rng(seed).standard_t(2, count)
    assert stand_outs(values, min_relative)[0].tolist() == every_window(
        values, min_relative=min_relative
    )


@pytest.mark.parametrize("how", ["flags", "event", "exception"])
def test_of_many_ranks_the_one_that_told_of_trouble_is_looked_at(tmp_path, how):
    ranks, odd = 40, 29
    build = Builder(tmp_path / "r")
    for rank in range(ranks):
        build.hello(rank, world_size=ranks)
        for step in range(30):
            bad = how == "flags" and rank == odd and step >= 20
            flags = wire.F_NONFINITE if bad else 0
            build.step(rank, forward=10.0, loss=math.nan if bad else 1.0, flags=flags)
    live = LiveFindings(build.open())
    before = {one.id for one in live.tick()}
    if how == "event":
        build.event("nonfinite", t_ns=build.clock[odd], rank=odd, step=29, value="nan")
    if how == "exception":
        head = {"class": "ValueError", "message": "bad batch", "step": 30, "phase": "data"}
        build.event("exception", t_ns=build.clock[odd], rank=odd, **head)
    live.record.refresh()
    found = {one.id: one.rank for one in live.tick()}
    wanted = "HC06" if how == "exception" else "NU01"
    assert found.get(wanted) == odd
    assert (wanted in before) == (how == "flags")
    assert odd in live_ranks(live.record)
