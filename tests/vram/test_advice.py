"""Advice starts from the estimate: a change is worth the ratio of two estimates of one tier."""

from dataclasses import replace

from gputop_analysis import catalog
from gputop_analysis.vram.advice import advised
from gputop_analysis.vram.question import estimate
from gputop_analysis.vram.setup import Setup
from gputop_analysis.vram.sizing import sized
from gputop_analysis.vram.tiers import solver_of

SETUP = Setup(catalog.model("gpt2-xl"), seq=1024, micro_batch=4)


def test_the_three_steps_are_the_answer():
    answer, need = sized(SETUP, solver_of(SETUP, "formula"))
    assert answer.levers == () and answer.max_micro_batch is None
    assert advised(answer, need, "H100") == estimate(SETUP, "formula", gpu="H100")


def test_what_was_measured_larger_saves_in_proportion():
    answer, need = sized(SETUP, solver_of(SETUP, "formula"))
    before = {lever.change: lever.saves for lever in advised(answer, need, "H100").levers}
    need.reserved *= 2
    after = {lever.change: lever.saves for lever in advised(replace(answer), need, "H100").levers}
    assert before and all(abs(after[change] - 2 * saves) <= 2 for change, saves in before.items())
