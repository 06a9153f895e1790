"""What keeps the tensors that pile up: from one of them up through tuples, objects and small dicts
to the list, deque, set or dict that grows, its name, and the line of the script that fills it. Most
of what a kept graph holds is in no container: then the variables of the script are gone through.
"""

import ast
import gc
import inspect
import logging
import re
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from functools import partial
from time import monotonic_ns
from types import CellType, FrameType, FunctionType, MethodType, TracebackType

from gputop_agent.runtime import frames, source, syntax, variables
from gputop_agent.runtime.session import session

MIN_LENGTH = 20
MIN_KIN = 3  # piles in one container
MIN_GRAPHS = 5  # of kept outputs with their graphs a few are a pile
MAX_DEPTH, MAX_VISITED = 6, 400
MAX_NS = 30_000_000
MAX_WALKS_NS = 300_000_000  # of a look through all objects: 30 ms where libraries have 400,000
ENOUGH, MAX_TRIED, STRIDE = 3, 10, 7  # tensors that a container was found of, and tried
MAX_SHAPES = 2
#: what follows the name of a container in a line that fills it
_FILLS = (
    r"(\[[^\]]*\])?"
    r"(\.(append|appendleft|extend|add|insert|push|put|update|callback|enter_context)\("
    r"| *\+= *(?![\d.]+\s*$)|\[[^:]*\] = )"
)
_PUSHES = ("heappush", "heappushpop", "insort", "insort_left", "insort_right")
_MAKES = r" *= *(collections\.)?defaultdict\("
MAX_FRAMES = 32
_MAPS = dict, OrderedDict, defaultdict, Counter
PILES = (list, deque, set, *_MAPS)
_CLOSURES = CellType, FunctionType, MethodType, partial
_FAILED = FrameType, TracebackType  # of an exception that is kept
_BETWEEN = (tuple, list, logging.LogRecord, *_CLOSURES, *_FAILED, *_MAPS)


class Walks:
    """Through all objects that the collector knows, for those that refer to some."""

    def __init__(self):
        self.spent_ns = 0

    def referrers(self, *things):
        """What refers to any of the things; nothing where the walks before it took too long."""
        if self.spent_ns > MAX_WALKS_NS:
            return []
        began = monotonic_ns()
        holders = [holder for holder in gc.get_referrers(*things) if holder is not things]
        self.spent_ns += monotonic_ns() - began
        return holders


walks = Walks()  # of this look


class GrowingContainer:
    """The container found at the last look: it is told once it has grown since."""

    def __init__(self):
        self.lengths = {}  # by name, at the last look
        self.shapes = Counter()  # of the tensors at the last look
        self.told = {}

    def look(self, tensors, beside=()):
        """``{"kept_in": "history", "kept_site": "train.py:88"}`` of the container that most of some
        of these tensors are in, if it has grown since the last look; else empty. ``beside`` are
        lists of the caller's.

        Those of the shapes are tried of which most have come since, then which took most: what
        piles up is alike, and a view that is kept keeps a tensor of another shape, which is in no
        container. Tensors without graphs are as large as they look: there what took most is first.
        """
        if self.told:
            return self.told
        shapes = Counter(tensor.shape for tensor in tensors)
        more, self.shapes, is_first = shapes - self.shapes, shapes, not self.shapes
        name, length, count = "", 0, 0
        walks.spent_ns = 0
        for shape in _likeliest(more, is_by_size=not tensors or tensors[-1].grad_fn is None):
            count = more[shape]
            alike = [tensor for tensor in tensors if tensor.shape == shape]
            name, length = _most_common(alike, (tensors, alike, *beside))
            if name:
                break
        lengths = {name: length} if name else _variables_with_graphs()
        if name and not is_first and length >= count:
            self.lengths.setdefault(name, 0)  # all that came since lies in it
        growth = {pile: lengths[pile] - self.lengths.get(pile, lengths[pile]) for pile in lengths}
        largest = max(growth, key=growth.__getitem__, default="")
        if growth.get(largest, 0) > 0:
            self.told = {"kept_in": largest, "kept_site": filled_at(largest)}
        self.lengths = lengths
        return self.told


def _likeliest(more, *, is_by_size):
    """Some shapes of a Counter: that of most tensors and that of most values."""
    by_count = [shape for shape, _ in more.most_common(MAX_SHAPES)]
    if not is_by_size:
        return by_count
    largest = sorted(more, key=lambda shape: more[shape] * shape.numel(), reverse=True)
    return list(dict.fromkeys([*largest[:MAX_SHAPES], *by_count]))


def _variables_with_graphs():
    """Lengths, by name, of lists and deques of the running functions and of their objects whose
    last entry holds a tensor with a graph.
    """
    lengths = {}
    for name, value in users_variables():
        named = [(name, value)]
        if is_the_users(value):
            named = getattr(value, "__dict__", {}).items()
        lengths.update((name, len(pile)) for name, pile in named if _keeps_graphs(pile))
    return lengths


def _keeps_graphs(pile):
    if type(pile) not in (list, deque) or len(pile) < MIN_GRAPHS:
        return False
    parts = [pile[-1]]
    if type(pile[-1]) in (tuple, list):
        parts = pile[-1]
    elif type(pile[-1]) is dict:
        parts = list(pile[-1].values())
    return any(type(part) is session.torch.Tensor and part.grad_fn for part in parts[:MIN_LENGTH])


def _most_common(tensors, ours):
    """Name and length of the container that holds most of three of the tensors.

    Those that only a graph holds have no container of Python's, so more are tried.
    """
    began, names, named = monotonic_ns(), [], {}
    begin = len(tensors) // 2  # the oldest are the model's, the newest of the present step
    for tensor in tensors[begin : begin + STRIDE * MAX_TRIED : STRIDE]:
        if len(names) == ENOUGH or monotonic_ns() - began > MAX_NS:
            break
        pile = _pile_above(tensor, ours)
        if pile is None:
            continue
        if id(pile) not in named:
            named[id(pile)] = _name_of(pile, ours)
        names.append((named[id(pile)], len(pile)))
    return max(names, key=names.count, default=("", 0))


def _pile_above(thing, ours):
    """The nearest long container above, by the shortest way; None where there is none.

    A long dict or list may be one of many, as states of a model are: then it is the list or dict of
    them.
    """
    level, visited, depth = [thing], set(), 0
    long_map = None
    while depth < MAX_DEPTH and len(visited) < MAX_VISITED:
        above = []
        for holder in walks.referrers(*level):
            if id(holder) in visited or any(
                holder is passed_over for passed_over in (level, above, *ours)
            ):
                continue
            visited.add(id(holder))
            if _is_namespace(holder):
                continue
            if type(holder) in PILES and len(holder) >= MIN_LENGTH:
                if type(holder) not in _MAPS:
                    return _all_of_its_kind(holder, ours) or holder
                if long_map is None or _is_one_of_many(long_map, holder):
                    long_map = holder
            if _may_be_between(holder):
                above.append(holder)
        level = above
        if not level or len(level) > MIN_LENGTH:
            break
        # a traceback has one link for each function that the exception passed through
        depth += not any(type(holder) in _FAILED for holder in level)
    return long_map


def _all_of_its_kind(pile, ours):
    """The list or dict whose entries are all such piles, this one among them; None without."""
    for holder in walks.referrers(pile):
        may_hold_many = type(holder) in (list, *_MAPS) and len(holder) >= MIN_KIN
        if may_hold_many and not any(holder is lists for lists in ours):
            if _is_one_of_many(pile, holder):
                return holder
    return None


def _is_one_of_many(entry, holder):
    """Whether a container is a value among others of its kind in another one."""
    values = list(holder.values() if type(holder) in _MAPS else holder)
    is_among_them = any(value is entry for value in values)
    return is_among_them and {type(value) for value in values} == {type(entry)}


def _may_be_between(holder):
    """Whether it can hold a tensor for a container; its type is asked, which runs no code."""
    kind = type(holder)
    return kind in _BETWEEN or issubclass(kind, Exception) or is_the_users(holder)


def _is_namespace(holder):
    return type(holder) is dict and "__name__" in holder and "__builtins__" in holder


def is_the_users(holder):
    """Whether it is an object of a class of the user's."""
    return is_users_module(sys.modules.get(type(holder).__module__))


def is_users_module(module):
    """Whether a module, or None for one that is not loaded, lies in a file of the user's."""
    file = getattr(module, "__file__", None)
    return file is not None and frames.origin(file) == frames.USER


def _name_of(pile, ours):
    """The name of a variable or of an attribute of the user's that the container has."""
    for name, value in users_variables():
        if value is pile:
            return name
    holders = [
        holder for holder in walks.referrers(pile) if not any(holder is lists for lists in ours)
    ]
    dicts = [holder for holder in holders if type(holder) is dict]
    for owner in (*holders, *(walks.referrers(*dicts) if dicts else ())):
        is_handler = isinstance(owner, logging.Handler)
        values = getattr(owner, "__dict__", None) if is_handler or is_the_users(owner) else None
        for name, value in list(values.items()) if type(values) is dict else ():
            if value is pile:
                return f"{type(owner).__name__}.{name}" if is_handler else name
    return (
        _name_of_default(holders, pile)
        or _name_in_module(holders, pile)
        or _name_in_library(holders, pile)
        or _name_of_owner(holders)
    )


def _name_of_default(holders, pile):
    """The name of a parameter of the user's whose default it is: made once, for all calls."""
    defaults = [holder for holder in holders if type(holder) in (tuple, dict)]
    for function in walks.referrers(*defaults) if defaults else ():
        if type(function) is FunctionType and _is_users_code(function.__code__):
            for name, parameter in _parameters(function):
                if parameter.default is pile:
                    return name
    return ""


def _parameters(function):
    return inspect.signature(function, follow_wrapped=False).parameters.items()


def _is_users_code(code):
    return frames.origin(code.co_filename) == frames.USER


def _name_in_module(holders, pile):
    """The name of a variable of a module of the user's that no running function is of."""
    for values in filter(_is_namespace, holders):
        if is_users_module(sys.modules.get(values["__name__"])):
            return next((name for name, value in list(values.items()) if value is pile), "")
    return ""


def _name_of_owner(holders):
    """The name of a variable of the user's that holds what has the container, as an ExitStack."""
    dicts = [holder for holder in holders if type(holder) is dict]
    owners = [holder for holder in holders if type(holder) not in PILES]
    owners += walks.referrers(*dicts) if dicts else []
    for name, value in users_variables():
        if any(value is owner for owner in owners) and not inspect.ismodule(value):
            return name
    return ""


def _name_in_library(holders, pile):
    """The name of an attribute of a library's object, as a trainer's log, that a line of the user's
    fills. Its dict is read as it lies there: no code of the library's is run.
    """
    attributes = [holder for holder in holders if type(holder) is dict]
    for owner in holders:
        if type(owner) not in PILES:
            attributes.append(variables.attributes(owner))
    names = [name for values in attributes for name, value in list(values.items()) if value is pile]
    return next((name for name in names if isinstance(name, str) and filled_at(name)), "")


def users_variables():
    """Names and values of the running functions of the user's."""
    return (pair for frame in _users_frames() for pair in variables.of(frame))


def _users_frames():
    """Frames of the running functions of the user's."""
    stack = frames.stack(sys._getframe(1), MAX_FRAMES)
    return [frame for frame in stack if _is_users_code(frame.f_code)]


def filled_at(name, search=None):
    """The only place that puts something into it, or that makes a dict that fills itself or the
    handler whose buffer it is; else empty. ``search`` is for a pattern in the user's files: those
    on the stack, where nothing else is said.
    """
    search = search or _place_on_stack
    handler, _, is_buffer = name.partition(".")
    if is_buffer:
        return source.place_with(handler + "(") or ""
    escaped = re.escape(name)
    return (
        search(r"\b%s\b%s" % (escaped, _FILLS))
        or pushed_at(name)
        or search(r"\b%s\b%s" % (escaped, _MAKES))
        or decorated_at(name)
    )


def pushed_at(name):
    """The only call that pushes into a heap or a sorted list of this name; else empty."""
    lines = [
        (file, node.lineno)
        for file in source.users_files()
        for node in syntax.nodes(file)
        if isinstance(node, ast.Call) and node.args
        if _last_name(node.func) in _PUSHES and _last_name(node.args[0]) == name
    ]
    return source.place_of(lines) or ""


def _last_name(node):
    """``x`` of ``x`` and of ``self.x``."""
    return getattr(node, "attr", getattr(node, "id", ""))


def decorated_at(function):
    """The line ``@functools.cache`` of the only function of this name that has one; else empty."""
    lines = [
        (file, decorator.lineno)
        for file in source.users_files()
        for node in syntax.nodes(file)
        if isinstance(node, syntax.FUNCTION) and node.name == function
        for decorator in node.decorator_list
        if _names_cache(decorator)
    ]
    return source.place_of(lines) or ""


def _names_cache(decorator):
    """Whether a name in it says that results are kept, as ``lru_cache(maxsize=None)``."""
    return any("cache" in _last_name(part) for part in ast.walk(decorator))


def _place_on_stack(pattern):
    """As ``source.place_matching``, in the files of the running functions alone."""
    return source.place_in({frame.f_code.co_filename for frame in _users_frames()}, pattern)
