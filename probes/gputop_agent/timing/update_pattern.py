"""The pattern of updates that a loop repeats: one a step, generator and critic in turn, an update
every fourth backward. Between windows it alone tells where steps end.
"""

from collections import deque
from typing import Any

MAX_PERIOD, PERIODS = 24, 4  # entries of a pattern, and how often it has to be seen
STEP_ENDS = 0  # in the log of updates: no optimizer has this id


class UpdatePattern:
    """Which optimizer steps when, and where in it the loop is."""

    def __init__(self):
        # ids of optimizers that stepped, and ``STEP_ENDS``
        self.log = deque(maxlen=MAX_PERIOD * PERIODS)
        self.ids: Any = ()  # of the optimizers in turn; empty: no pattern is followed
        self.ends: Any = ()  # whether a step ends with each
        self.place = 0  # of the next update

    def follow(self):
        """Begin with the pattern that the log repeats. Returns whether there is one."""
        pattern = find_pattern(tuple(self.log))
        if pattern is None:
            return False
        self.ids, self.ends = pattern
        self.place = 0
        return True

    def advance(self):
        """Go on to the next update. Returns whether a step has ended."""
        ended = self.ends[self.place]
        self.place = (self.place + 1) % len(self.ids)
        return ended

    def updates_in(self, n_steps):
        """How many updates so many steps have."""
        return n_steps * len(self.ids) // sum(self.ends)

    def forget(self):
        """Follow none until another one has repeated itself."""
        self.ids = self.ends = ()
        self.log.clear()


def find_pattern(log):
    """The shortest pattern that the log has repeated ``PERIODS`` times.

    Returns:
        ``(ids, ends)``: ids of the optimizers in turn, and whether a step ends with each. None
        without a pattern.
    """
    if not log or log[-1] != STEP_ENDS:
        return None
    for period in range(2, min(MAX_PERIOD, len(log) // PERIODS) + 1):
        if log[-period * PERIODS : -period] == log[-period * (PERIODS - 1) :]:
            return _ids_and_ends(log[-period:])
    return None


def _ids_and_ends(entries):
    """One period's optimizers, and which of them end a step; None where a step has no update."""
    ids, ends = [], []
    for entry, following in zip(entries, (*entries[1:], None)):
        if entry != STEP_ENDS:
            ids.append(entry)
            ends.append(following == STEP_ENDS)
    if sum(ends) != entries.count(STEP_ENDS):
        return None
    return tuple(ids), tuple(ends)
