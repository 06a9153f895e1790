"""Which list, deque, set or dict of the script grows as its memory does, where that is no tensors'
doing: arrays, texts, samples, results.

From the variables of the running functions on, through objects and modules of the user's. What a
long collection holds may itself have grown: lists by key, or those of its objects. So may what
``functools.cache`` keeps of a function's results.
"""

import gc
import re
import sys
from collections import deque
from functools import lru_cache
from time import monotonic_ns
from types import ModuleType
from typing import Any

from gputop_agent.runtime import source
from gputop_agent.runtime.session import session
from gputop_agent.watchers.memory import keepers

CACHE = " (functools.cache)"  # after the name of a function whose results are kept
_CACHED: Any = type(lru_cache(len))
_CACHES = r"\b%s\b *=.*\bcache\("
MAX_DEPTH, MAX_SEEN, MAX_NS = 5, 2000, 20_000_000
EACH = "[...]"  # after the name of a collection: those that it holds
MAX_ELEMENTS = 512  # of a collection that are looked into
MAX_ITEMS = 8  # of a tuple or an object, whose sizes stand for all of its
MIN_SHARE = 0.3  # of what memory grew by
MIN_LENGTH = 5  # few of what is large matter, too
OFTEN = 0.5  # entries a step of a collection of objects that do not tell their size
DICT_PLACE_BYTES = 100  # of CPython: hash, key and value, and what is kept free
_SIZED = (str, bytes, bytearray, int, float)


class GrowingCollection:
    """Lengths at the last look, by name."""

    def __init__(self):
        self.lengths = {}
        self.memory_bytes = self.step = 0
        self.told = {}

    def look(self, memory_bytes, variables=None, search=None):
        """``{"grown_in": "frames", "grown_site": "train.py:88"}`` of the one that has grown most
        since the last look, if by a good part of what memory has; else empty.

        Args:
            memory_bytes: now.
            variables: names and values to begin with; those of the running functions otherwise.
            search: finds a line, see ``keepers.filled_at``.
        """
        if self.told:
            return self.told
        piles = _piles(keepers.users_variables() if variables is None else variables)
        growth = {
            name: len(pile) - self.lengths[name]
            for name, pile in piles.items()
            if name in self.lengths
        }
        grown = {name: more * _size_of_entry(piles[name]) for name, more in growth.items()}
        largest = max(grown, key=grown.__getitem__, default="")
        if grown.get(largest, 0) <= MIN_SHARE * max(1, memory_bytes - self.memory_bytes):
            largest = self._only_opaque(piles, growth)
        if largest:
            site = _filled_at(largest, search)
            self.told = {"grown_in": largest, "grown_site": site}
        self.lengths = {name: len(pile) for name, pile in piles.items()}
        self.memory_bytes, self.step = memory_bytes, session.step
        return self.told

    def _only_opaque(self, piles, growth):
        """The only collection of objects of C's that gets longer with the steps; else empty."""
        enough = max(1, OFTEN * (session.step - self.step))
        names = [
            name
            for name, more in growth.items()
            if more >= enough and _is_opaque(_newest(piles[name]))
        ]
        return names[0] if len(names) == 1 else ""


def _piles(variables):
    """Long collections by the name of the variable or attribute that has them."""
    began, visited, piles = monotonic_ns(), set(), {}
    level = list(variables)
    for _ in range(MAX_DEPTH + 1):
        further = []
        for name, value in level:
            if len(visited) >= MAX_SEEN or monotonic_ns() - began > MAX_NS:
                return piles
            if id(value) in visited:
                continue
            visited.add(id(value))
            if type(value) in keepers.PILES and len(value) >= MIN_LENGTH:
                piles.setdefault(name, value)
                for inner_name, inner in _within(name, value):
                    piles.setdefault(inner_name, inner)
            else:
                further += _inside(name, value)
        level = further
    return piles


class _Together:
    """Collections that grow as one, as the lists of a dict."""

    def __init__(self, parts, scale):
        self.longest: Any = max(parts, key=len)
        self.length = round(scale * sum(map(len, parts)))

    def __len__(self):
        return self.length


def _within(name, pile: Any):
    """The collections that a collection holds, under its name; those of its objects by the names of
    their attributes.
    """
    values = pile.values() if isinstance(pile, dict) else pile
    items = list(values)[:MAX_ELEMENTS]
    scale, first = len(pile) / len(items), items[0]
    if type(first) in keepers.PILES:
        named = {name + EACH: items}
    elif keepers.is_the_users(first):
        attributes = getattr(first, "__dict__", None) or {}
        named = {
            attribute: _attributes(items, attribute)
            for attribute, value in list(attributes.items())
            if type(value) in keepers.PILES
        }
    else:
        return []
    together = []
    for key, inner_values in named.items():
        piles = [value for value in inner_values if type(value) in keepers.PILES]
        if any(piles):
            together.append((key, _Together(piles, scale)))
    return together


def _attributes(items, name):
    """What objects have under the name of an attribute; None for one without it."""
    return [(getattr(item, "__dict__", None) or {}).get(name) for item in items]


def _inside(name, value):
    """Names and values of an object or module of the user's; the values of a small dict under its
    own name.
    """
    if type(value) is _CACHED:
        return [(name.removesuffix(CACHE) + CACHE, results) for results in _results(value)]
    if type(value) is dict:
        return [(name, item) for item in list(value.values())]
    is_users = keepers.is_users_module if type(value) is ModuleType else _is_looked_into
    inside = getattr(value, "__dict__", None) if is_users(value) else None
    return list(inside.items()) if type(inside) is dict else []


def _results(cached):
    """The dict with what a function gave for each of its arguments; none where it is empty."""
    attributes, size = cached.__dict__, cached.cache_info().currsize
    dicts = [part for part in gc.get_referents(cached) if type(part) is dict]
    return [results for results in dicts if results is not attributes and 0 < len(results) == size]


def _filled_at(name, search):
    """The only line that fills it; of what a function gave, that which has it kept."""
    if not name.endswith(CACHE):
        return keepers.filled_at(name.removesuffix(EACH), search)
    function = name.removesuffix(CACHE)
    site = (search or source.place_matching)(_CACHES % re.escape(function))
    return site or keepers.decorated_at(function)


def _is_looked_into(value):
    """Whether it is the user's, or torch's around a data set of the user's."""
    return keepers.is_the_users(value) or type(value).__module__.startswith("torch.utils.data.")


def _newest(pile: Any):
    """What was put in last."""
    if isinstance(pile, _Together):
        pile = pile.longest
    if type(pile) in (list, deque):
        return pile[-1]
    if type(pile) is set:
        return next(iter(pile))
    return next(reversed(list(pile.values())))


def _size_of_entry(pile):
    """Bytes of what was put in last, of a dict with its key and its place."""
    if not isinstance(pile, dict):
        return _kept_by_view(pile) or _size(_newest(pile))
    key, value = next(reversed(list(pile.items())))
    return DICT_PLACE_BYTES + _size(key) + _size(value)


def _kept_by_view(pile):
    """Bytes of the array that the last of a list is a part of, where the one before is no part of
    it; else 0.
    """
    if type(pile) not in (list, deque) or len(pile) < 2:
        return 0
    before, whole = _whole_array(pile[-2]), _whole_array(pile[-1])
    return 0 if whole is None or whole is before else _size(whole)


def _whole_array(item):
    """What an array of NumPy's is a view of; None where it is none."""
    base = getattr(item, "base", None) if type(item).__module__ == "numpy" else None
    return base if type(base) is type(item) else None


def _is_opaque(item):
    """Whether it is an object of C's that may hold anything, as the handle of a collective."""
    kind = type(item)
    known = kind in (*_SIZED, tuple, list, dict, bool, type(None)) or kind.__module__ == "numpy"
    return not known and not kind.__dictoffset__


def _size(item, depth=2) -> int:
    """Bytes of numbers, texts, arrays and tensors; of what holds some of these, ``depth`` deep."""
    kind = type(item)
    if kind in _SIZED:
        return sys.getsizeof(item)
    if kind.__module__ == "numpy" or kind in (session.torch.Tensor, session.torch.nn.Parameter):
        size = getattr(item, "nbytes", 0)
        return size if type(size) is int else 0
    parts = item
    if kind is dict:
        parts = list(item.values())
    elif kind not in (list, tuple):
        parts = list((getattr(item, "__dict__", None) or {}).values())
    if not depth:
        return 0
    some = parts[:MAX_ITEMS]
    of_each = sum(_size(part, depth - 1) for part in some) / max(1, len(some))
    return 64 + round((8 + of_each) * len(parts))  # 8: the reference to it
