"""What is known of objects of the user's, for as long as they live.

The end of an object is noted by C code alone. A callback of Python's would swallow what a signal's
handler raises in it, and fail aloud when the interpreter has taken its names away.
"""

import weakref
from collections import deque


def alive(references):
    """The objects of weak references that are there yet."""
    things = [reference() for reference in list(references)]
    return [thing for thing in things if thing is not None]


class Reference(weakref.ref):
    """A weak reference that knows the id of its object when that is gone."""

    __slots__ = ("key",)

    def __new__(cls, thing, callback):
        self = super().__new__(cls, thing, callback)
        self.key = id(thing)
        return self

    __hash__ = object.__hash__  # the object may have none
    __eq__ = object.__eq__


class Living:
    """Values by object."""

    def __init__(self):
        self._entries = {}  # id -> (reference, value)
        self._gone = deque()  # references whose objects are gone

    def put(self, thing, value):
        """Know ``value`` of ``thing``."""
        self._forget()
        self._entries[id(thing)] = Reference(thing, self._gone.append), value

    def get(self, thing):
        """What is known of it; None if nothing is."""
        reference, value = self._entries.get(id(thing), (None, None))
        if reference is not None and reference() is thing:
            return value
        return None

    def items(self):
        """Each object that lives, and what is known of it."""
        pairs = [(reference(), value) for reference, value in list(self._entries.values())]
        return [(thing, value) for thing, value in pairs if thing is not None]

    def __contains__(self, thing):
        """Whether something is known of it."""
        return self.get(thing) is not None

    def _forget(self):
        while self._gone:
            reference = self._gone.popleft()
            if self._entries.get(reference.key, (None,))[0] is reference:
                del self._entries[reference.key]


def outermost(optimizers):
    """Those that no other of them has as an attribute: ``ZeroRedundancyOptimizer`` holds one of a
    rank's share, wrappers the one that they wrap.
    """
    held_ids = {id(value) for outer in optimizers for value in outer.__dict__.values()}
    return [optimizer for optimizer in optimizers if id(optimizer) not in held_ids]
