"""Interval arithmetic against counting points one by one."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gputop_analysis.traces.intervals import common, merged, self_times, union, without
from gputop_analysis.traces.load import nanoseconds

pairs = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)), max_size=12)


def points(spans):
    return {t for start, length in spans for t in range(start, start + length)}


def made(spans):
    starts = np.array([s for s, _ in spans], np.int64)
    return union(starts, starts + np.array([n for _, n in spans], np.int64))


def held(intervals):
    assert (intervals.ends > intervals.starts).all() and (
        intervals.starts[1:] > intervals.ends[:-1]
    ).all()
    return {t for s, e in zip(intervals.starts, intervals.ends, strict=True) for t in range(s, e)}


@given(pairs, pairs)
@settings(max_examples=200)
def test_sets_of_points(a, b):
    one, two = made(a), made(b)
    assert held(one) == points(a)
    assert held(merged(one, two)) == points(a) | points(b)
    assert held(common(one, two)) == points(a) & points(b)
    assert held(without(one, two)) == points(a) - points(b)


@given(pairs, pairs)
@settings(max_examples=200)
def test_lengths_in_windows(a, windows):
    starts = np.array([s for s, _ in windows], np.int64)
    ends = starts + np.array([n for _, n in windows], np.int64)
    expected = [len(points(a) & set(range(s, e))) for s, e in zip(starts, ends, strict=True)]
    assert made(a).length_in(starts, ends).tolist() == expected


@st.composite
def calls(draw, start=0, room=40, depth=0):
    """Properly nested calls as (start, end), outer before inner."""
    found = []
    while room > 0 and draw(st.booleans()):
        skip = draw(st.integers(0, room))
        length = draw(st.integers(0, room - skip))
        begin = start + skip
        found.append((begin, begin + length))
        if depth < 3 and length:
            found += draw(calls(begin, length, depth + 1))
        start, room = begin + length, room - skip - length
    return found


@given(calls())
@settings(max_examples=200)
def test_self_times_add_up_to_the_covered_time(found):
    starts = np.array([s for s, _ in found], np.int64)
    ends = np.array([e for _, e in found], np.int64)
    covered = {t for s, e in found for t in range(s, e)}
    own = self_times(starts, ends)
    assert own.sum() == len(covered) and (own >= 0).all()


def test_self_time_is_less_what_is_right_inside():
    starts, ends = np.array([0, 1, 2, 5, 20, 20]), np.array([10, 4, 3, 9, 30, 25])
    assert self_times(starts, ends).tolist() == [3, 2, 1, 4, 5, 5]


@given(st.integers(0, 2**62))
def test_times_keep_their_nanoseconds(ns):
    assert nanoseconds(f"{ns // 1000}.{ns % 1000:03}") == ns
    assert nanoseconds(ns // 1000) == ns // 1000 * 1000


def test_times_in_other_notations():
    assert (
        nanoseconds("12.5") == 12_500
        and nanoseconds("1.2e3") == 1_200_000
        and nanoseconds("0.1234567") == 123
    )
