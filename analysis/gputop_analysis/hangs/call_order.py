"""The order in which a rank calls collectives: does it go on as it went before?

A call is foretold by the longest run of calls that ended in the same ones before: a barrier every
tenth step is foretold for the tenth, not for the ninth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

UNNUMBERED = -1
"""The number of a call of which only a stack tells."""
_LATEST = 12
"""Calls at the end that are looked at; a hang comes soon after the fault."""
_LEAST_HISTORY = 6
_LONGEST = 96


@dataclass(frozen=True, slots=True)
class Call:
    """A collective, or a message to or from another rank."""

    group: str
    number: int
    operation: str
    """As recorded: ``gloo:all_reduce``."""
    shapes: str = ""
    site: str = ""
    peer: int | None = None
    done: bool = True
    at_ns: int = 0

    @property
    def name(self) -> str:
        """``all_reduce``."""
        return self.operation.rpartition(":")[2].partition(" ")[0].lower() or "a collective"

    @property
    def key(self) -> tuple[str, str, int | None, str]:
        """What makes it the same call in another step: its line, else its sizes."""
        return self.group, self.name, self.peer, self.site or self.shapes

    def same_as(self, other: Call) -> bool:
        """Whether it is the same operation, whatever its sizes and wherever it was called."""
        return (self.group, self.name, self.peer) == (other.group, other.name, other.peer)


@dataclass(frozen=True, slots=True)
class Deviation:
    """A call that is not the one foretold."""

    call: Call
    usual: Call
    """The one foretold, as it was called before."""
    seen_before: bool
    """The call itself belongs to other places of the order."""
    is_early: bool = False
    """It came after the same call before, though less often than the one foretold."""


def deviation(
    calls: Sequence[Call], is_shared: Callable[[Call], bool] = lambda _: False
) -> Deviation | None:
    """The first call among the latest that is not the one foretold, or is of other sizes than ever;
    None where all are.

    Args:
        calls: of a rank.
        is_shared: whether all ranks made the same call: it is of the program, if a rare part.
    """
    numbers: dict[object, int] = {}
    codes = [numbers.setdefault(call.key, len(numbers)) for call in calls]
    for at in range(max(_LEAST_HISTORY, len(calls) - _LATEST), len(calls)):
        call = calls[at]
        if is_shared(call):
            continue
        usual = _foretold(codes, at)
        if usual is not None and codes[usual] != codes[at]:
            is_early = _is_early(codes, at, usual)
            return Deviation(call, calls[usual], codes[at] in codes[:at], is_early)
        sizes = {calls[earlier].shapes for earlier in range(at) if codes[earlier] == codes[at]}
        if usual is not None and len(sizes) == 1 and call.shapes not in sizes:
            return Deviation(call, calls[usual], True)
    return None


def _is_early(codes: list[int], at: int, usual: int) -> bool:
    """Whether the call at ``at`` has come after the one before it already, less often than the one
    at ``usual``.
    """
    followers = [codes[i] for i in range(1, at) if codes[i - 1] == codes[at - 1]]
    return 0 < followers.count(codes[at]) < followers.count(codes[usual])


def _foretold(codes: list[int], at: int) -> int | None:
    """Index of the call that followed the longest run that ends like the calls before ``at``; None
    where such runs are short or were followed by different calls.
    """
    best, length = None, 0
    for end in range(at - 1, 0, -1):
        if codes[end - 1] != codes[at - 1]:
            continue
        run = 1
        longest = min(end, _LONGEST)
        while run < longest and codes[end - 1 - run] == codes[at - 1 - run]:
            run += 1
        if run > length:
            best, length = end, run
    if best is None or length < 2:
        return None
    return best
