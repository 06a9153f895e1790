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

MAX_NODES, NEWEST = 10_000, 64
PARTS, MOST_PARTS = 10, 8  # of the time since the last look, by the numbers of the nodes
_CUTS = re.compile(r"\.(detach|item|tolist|numpy)\(|\bfloat\(|\.data\b")  # no graph is left then
_SOON = 6  # lines in which a view is written to after it is taken


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
    """From each of the newest for itself: a chain keeps tensors at each of its nodes, and only from
    its end the way goes through all of it.
    """
    newest = sorted(tensors, key=lambda tensor: _number(tensor.grad_fn), reverse=True)[:NEWEST]
    walk = _Walk(since, now)
    for tensor in newest:
        parts = walk.parts_from(tensor.grad_fn)
        if len(set(parts)) >= MOST_PARTS:
            return len(parts), tensor
    return 0, None


class _Walk:
    """Ways back from several nodes, the oldest node first."""

    def __init__(self, since, now):
        self.since, self.now = since, now
        self.left = MAX_NODES
        self.ends_here = set()  # nodes from which no way leads to one older than ``since``

    def parts_from(self, begin):
        """Of each node gone through until an older one is met, the part of the time that it was
        made in; none where none is met.
        """
        order = count()  # settles between equal numbers: nodes have no order
        todo, visited, parts = [(_number(begin), next(order), begin)], {begin}, []
        while todo and self.left > 0:
            self.left -= 1
            number, _, node = heapq.heappop(todo)
            if number < self.since:
                return parts
            parts.append(PARTS * (number - self.since) // (self.now - self.since))
            for child, _ in node.next_functions:
                if child is not None and child not in visited and child not in self.ends_here:
                    visited.add(child)
                    heapq.heappush(todo, (_number(child), next(order), child))
        if not todo:
            self.ends_here |= visited
        return []


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
    this name from itself, or else that writes to a view of it; empty where there are none or
    several.
    """
    if not name:
        return ""
    word = re.escape(name)
    makes = re.compile(r"\s*[\w.\[\]'\"]*\b%s\b['\"\]]*\s*(\+=|=[^=].*\b%s\b)" % (word, word))
    lines = [line for line in _lines_of_users() if makes.match(line[2])]
    lines = [line for line in lines if not _CUTS.search(line[2])] or _writes_to_views(word)
    return "%s:%d" % lines[0][:2] if len(lines) == 1 else ""


def _writes_to_views(word):
    """Lines like ``part += share`` soon after ``part = self.sums[0]``."""
    takes = re.compile(r"\s*(\w+) *= *[\w.]*\b%s\b\[" % word)
    writes = r"\s*%s *[-+*/]=|\s*%s\.\w+_\("
    lines, writing = list(_lines_of_users()), []
    for at, (_, _, text) in enumerate(lines):
        view = takes.match(text)
        if view is not None:
            pattern = re.compile(writes % (view[1], view[1]))
            soon = [line for line in lines[at + 1 : at + 1 + _SOON] if pattern.match(line[2])]
            writing += soon[:1]
    return writing


def _lines_of_users():
    """File, number and text of the lines of the user's files on the stack, without those of which
    more follows as an argument does.
    """
    files = {frame.f_code.co_filename for frame in frames.stack(sys._getframe(1), 32)}
    for file in sorted(files):
        if frames.origin(file) == frames.USER:
            for number, text in enumerate(linecache.getlines(file), 1):
                if not text.rstrip().endswith(","):
                    yield frames.short_name(file), number, text
