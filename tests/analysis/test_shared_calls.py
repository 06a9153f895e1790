"""Places in functions that several lines call."""

from __future__ import annotations

from gputop_analysis.findings.shared_calls import where_it_is_called
from gputop_analysis.findings.site import Site
from gputop_analysis.findings.stack_samples import PlacedSample

CALL, TOOL = "train.py:90 main", "train.py:12 smoothed"
SAMPLES = [PlacedSample((CALL, TOOL), "", 20, shared_calls=(CALL,))]
PLACE = Site(TOOL, 1.0, 20)


def test_a_tool_that_several_lines_call_is_told_by_the_call_that_costs() -> None:
    assert where_it_is_called(PLACE, SAMPLES).site == CALL


def test_a_function_that_training_lies_in_is_no_tool() -> None:
    """A script that calls its training function again where memory was short."""
    assert where_it_is_called(PLACE, SAMPLES, around={CALL}) == PLACE
