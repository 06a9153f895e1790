"""Numbers as text."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputop.render import numbers


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.153, "153 µs"),
        (12.44, "12.4 ms"),
        (412.0, "412 ms"),
        (3204.0, "3.20 s"),
        (float("nan"), "–"),
        (None, "–"),
    ],
)
def test_durations_take_the_unit_that_reads_best(value, text):
    assert numbers.duration_ms(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(7, "0:07"), (247, "4:07"), (3847, "1:04:07"), (263_000, "3d 01:03"), (-1, "–")],
)
def test_clock(seconds, text):
    assert numbers.clock(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(18, "18 s"), (252, "4.2 min"), (4680, "78 min"), (8000, "2.2 h"), (400_000, "4.6 d")],
)
def test_span(seconds, text):
    assert numbers.span(seconds) == text


@given(st.floats(0, 1e11))
def test_a_rate_never_takes_more_than_five_characters(value):
    assert len(numbers.rate(value)) <= 5


@given(st.floats(1e-9, 1e12))
def test_the_axis_holds_the_value_and_wastes_at_most_half(value):
    top = numbers.nice_ceiling(value)
    assert value * 0.999 <= top <= value * 1.6


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2.3456, "2.346"),
        (3e-4, "3.0e-4"),
        (0.0, "0"),
        (math.inf, "inf"),
        (1e7, "1.0e7"),
        (-12345.678, "−12346"),
    ],
)
def test_scalars(value, text):
    assert numbers.scalar(value) == text


@given(st.floats(1e-9, 1e12) | st.floats(-1e12, -1e-9))
def test_a_label_keeps_its_cells_and_its_value(value):
    text = numbers.scalar_in(value, 7)
    assert len(text) <= 7
    assert float(text.replace("−", "-")) == pytest.approx(value, rel=0.06)


def test_a_small_share_is_not_nothing():
    assert numbers.percent(0.002) == "<1 %"
    assert numbers.percent(0.0) == "0 %"


def test_a_column_of_milliseconds_keeps_its_points_below_each_other():
    digits = numbers.digits_for(12.85)
    assert [numbers.ms_column(v, digits) for v in (12.85, 0.2)] == ["12.85", "0.20"]
