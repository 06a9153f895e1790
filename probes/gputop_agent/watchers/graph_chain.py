"""Whether a tensor that is alive has a graph that goes back over many steps: ``average = 0.9 *
average + 0.1 * loss`` is one tensor at any time, and keeps the graph of each loss.

Autograd numbers its nodes as they are made. From the tensors that hold a graph the oldest node that
is known is always gone to next, so a chain over the steps is followed without the graphs that hang
on it. What was made since the look before is known by its number.
"""

import gc
import heapq
import linecache
import re
import sys
from itertools import count

from gputop_agent.runtime import frames
from gputop_agent.runtime.session import session

MAX_NODES = 10_000
PARTS, MOST_PARTS = 10, 8  # of the time since the last look, by the numbers of the nodes


class Chain:
    """What the next look goes back to."""

    def __init__(self):
        self.since = -1  # nodes made after the last look have this number and more

    def begin(self):
        """What is made from now on is of these steps. Older versions of torch do not tell.

        Returns:
            The number of the next node; -1: not known.
        """
        autograd = getattr(session.torch._C, "_autograd", None)
        self.since = getattr(autograd, "_get_sequence_nr", lambda: -1)()
        return self.since

    def look(self, tensors):
        """Nodes made since the last look that the way back to an older one led through, and the
        tensor at which it begins; ``(0, None)`` where none leads there by nodes of all the time:
        one by nodes of the last step alone, to what was computed once, keeps nothing more.

        ``tensors`` hold a graph each.
        """
        since = self.since
        now = self.begin()
        return _way_back(tensors, since, now) if 0 <= since < now else (0, None)


def _way_back(tensors, since, now):
    order = count()  # settles between equal numbers: nodes have no order
    begins = [(_number(tensor.grad_fn), next(order), tensor.grad_fn, tensor) for tensor in tensors]
    todo = [begin for begin in begins if begin[0] >= since]
    heapq.heapify(todo)
    seen = {node for _, _, node, _ in todo}
    passed = {id(tensor): [] for tensor in tensors}  # parts of the nodes gone through from it
    while todo and len(seen) < MAX_NODES:
        number, _, node, tensor = heapq.heappop(todo)
        parts = passed[id(tensor)]
        if number < since:
            if len(set(parts)) >= MOST_PARTS:
                return len(parts), tensor
            continue
        parts.append(PARTS * (number - since) // (now - since))
        for child, _ in node.next_functions:
            if child is not None and child not in seen:
                seen.add(child)
                heapq.heappush(todo, (_number(child), next(order), child, tensor))
    return 0, None


def _number(node):
    return node._sequence_nr()


def name_of(tensor):
    """The name or key that a tensor is kept by, in a module, an object or a dict; empty where it is
    a local variable or in a list.
    """
    for holder in gc.get_referrers(tensor):
        if type(holder) is dict:
            for key, value in list(holder.items()):
                if value is tensor and type(key) is str:
                    return key
    return ""


def place_of(name):
    """``train.py:88``, the only line in the user's files on the stack that makes what is kept by
    this name from itself; empty where there are none or several.
    """
    word = re.escape(name)
    makes = re.compile(r"\s*[\w.\[\]'\"]*\b%s\b['\"\]]*\s*(\+=|=[^=].*\b%s\b)" % (word, word))
    files = {frame.f_code.co_filename for frame in frames.stack(sys._getframe(1), 32)}
    places = [
        "%s:%d" % (frames.short_name(file), number)
        for file in sorted(files)
        if frames.origin(file) == frames.USER
        for number, line in enumerate(linecache.getlines(file), 1)
        if makes.match(line) and not line.rstrip().endswith(",")
    ]
    return places[0] if name and len(places) == 1 else ""
