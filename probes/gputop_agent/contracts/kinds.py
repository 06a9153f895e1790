"""The kinds of values that fields hold; the marks are what readers derive their checks from."""

from typing import Annotated, NamedTuple, TypedDict, Union

from gputop_agent import wire


class Range(NamedTuple):
    """Whole numbers that can be true."""

    low: int
    high: int


NEEDED = "needed"
"""Marks a field without which the object says nothing."""

EARLIEST_NS, LATEST_NS = 946_684_800 * 10**9, 4_102_444_800 * 10**9
"""Years 2000 to 2100, in nanoseconds since the epoch: what lies outside is no time of a run."""

Line = Annotated[str, "line"]
Text = Annotated[str, "text"]
Scalar = Annotated[Union[bool, float, str], "scalar"]
Count = Annotated[int, "count"]
Amount = Annotated[float, "amount"]
Number = Annotated[float, "num"]
Real = Annotated[float, "real"]
"""Also NaN and infinite."""
Whole = Annotated[int, Range(0, 2**40)]
Signed = Annotated[int, Range(-(2**40), 2**40)]
Step = Annotated[int, Range(-1, 2**32)]
Pid = Annotated[int, Range(-1, 2**31)]
Rank = Annotated[int, Range(0, wire.MAX_RANK)]
Time = Annotated[int, Range(EARLIEST_NS, LATEST_NS)]
"""Nanoseconds since the epoch."""

OfClass = TypedDict("OfClass", {"class": Line}, total=False)
"""An object with the name of its class; ``class`` cannot be written as a field."""
