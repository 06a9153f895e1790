"""Which attribute of a data set holds values that are not finite."""

import sys
from collections import OrderedDict, defaultdict
from typing import Any, NamedTuple

from gputop_agent.runtime import late, modes, variables, wrapped
from gputop_agent.runtime.session import session
from gputop_agent.watchers.graphs import graph_origin
from gputop_agent.watchers.memory import keepers

_MAX_VALUES = 1 << 24  # that are read of one data set
_MAX_ITEMS = 20_000  # of lists and dicts
_DEPTH = 3  # of lists in lists
_COLLECTIONS = (list, tuple, dict, OrderedDict, defaultdict)
_MAX_OBJECTS, _MAX_SMALL = 64, 1 << 16
_MAX_HELD = 4  # objects of the user's in a data set


class DataHolder(NamedTuple):
    """A class, and the attribute of its object in which some values are not finite."""

    kind: type
    attribute: str


@modes.unseen
def of_dataset(dataset: Any):
    """The ``DataHolder`` among a data set and those that it wraps; None where what is in reach is
    finite.

    Looked into are tensors of the CPU, NumPy's arrays, tables of pandas, and lists and dicts of
    those in ``__dict__``; not mapped files, whose reading costs.
    """
    for part in wrapped.datasets(dataset):
        reader = _ValueReader()
        for holder, attribute, value in _with_parts(part):
            if reader.has_bad(value):
                return DataHolder(type(holder), attribute)
    return None


@modes.unseen
def of_objects(objects, attributes):
    """The same of objects of the user's, among attributes of these names: tensors with infinities
    and without NaN, as a state that the training carries on is NaN since, and no cause.
    """
    for holder in objects:
        for attribute in attributes:
            value = variables.attributes(holder).get(attribute)
            if isinstance(value, session.torch.Tensor) and _is_infinite(value):
                return DataHolder(type(holder), attribute)
    return None


def _is_infinite(tensor):
    is_in_reach = tensor.is_cpu and late.is_plain(tensor) and tensor.numel() <= _MAX_VALUES
    return is_in_reach and bool(tensor.isinf().any()) and not bool(tensor.isnan().any())


def objects_of(owners):
    """``[("self", object)]``: objects of the user's and those that they hold, each once."""
    objects = {}
    for owner in owners:
        values = list(variables.attributes(owner).values())
        for value in (owner, *filter(keepers.is_the_users, values[:_MAX_ITEMS])):
            objects[id(value)] = ("self", value)
    return list(objects.values())[:_MAX_OBJECTS]


@modes.unseen
def is_without_zero(tensor):
    """Whether a small tensor in reach has no zero."""
    is_small = tensor.is_cpu and 0 < tensor.numel() <= _MAX_SMALL
    return is_small and late.is_plain(tensor) and bool((tensor != 0).all())


def _with_parts(dataset):
    """``(object, attribute, value)`` of a data set, and of objects of the user's that it holds; not
    of a data set within it.
    """
    parts = dict(getattr(dataset, "__dict__", None) or {})
    parts.pop("dataset", None)
    own = [(dataset, attribute, value) for attribute, value in parts.items()]
    held = [value for value in parts.values() if keepers.is_the_users(value)]
    further = [
        (value, attribute, inner)
        for value in held[:_MAX_HELD]
        for attribute, inner in list(getattr(value, "__dict__", {}).items())
    ]
    return own + further


class _ValueReader:
    """Looks into values until there were too many."""

    def __init__(self):
        self.values_left = _MAX_VALUES
        self.items_left = _MAX_ITEMS

    def has_bad(self, value: Any, depth=0):
        """Whether a number, or one in an array or a collection, is not finite."""
        if type(value) in _COLLECTIONS:  # a subclass's methods are the user's
            return depth < _DEPTH and self._is_in(value, depth + 1)
        if isinstance(value, float):  # NumPy's float64 is one
            return value - value != 0
        package = type(value).__module__.partition(".")[0]
        if package == "torch" and isinstance(value, session.torch.Tensor):
            return self._may_read(value.numel()) and _is_bad_tensor(value)
        if package == "numpy" and hasattr(value, "dtype") and not hasattr(value, "mask"):
            return self._may_read(value.size) and _is_bad_array(value)
        if package == "pandas" and hasattr(value, "select_dtypes"):
            return self._may_read(value.size) and _is_bad_table(value)
        return False

    def _is_in(self, collection, depth):
        contents = collection.values() if isinstance(collection, dict) else collection
        for value in list(contents)[: self.items_left]:
            self.items_left -= 1
            if self.has_bad(value, depth):
                return True
        return False

    def _may_read(self, values):
        self.values_left -= values
        return self.values_left >= 0


def _is_bad_tensor(tensor):
    return tensor.is_cpu and graph_origin.is_finite(tensor) is False


def _is_bad_array(array):
    numpy = sys.modules["numpy"]
    if array.dtype.kind != "f" or not array.size or _is_mapped(array):
        return False
    with numpy.errstate(all="ignore"):  # it may warn of a NaN, on the training's stderr
        return not (numpy.isfinite(array.min()) and numpy.isfinite(array.max()))


def _is_mapped(array):
    while isinstance(array, sys.modules["numpy"].ndarray):
        if isinstance(array, sys.modules["numpy"].memmap):
            return True
        array = array.base
    return array is not None and type(array).__name__ == "mmap"


def _is_bad_table(table):
    return bool(table.select_dtypes("number").isna().to_numpy().any())
