"""The line of the user's that may have made a value which is not finite, where the model or the
loss was given it.

Nothing tells of values that carry no gradient, so the source is read: what flows into the call,
backwards through the assignments of its function, what those call, and how the data set makes its
samples. A line is told where one alone is the likeliest to make such a value.
"""

import ast
import inspect
import sys
from typing import Any, NamedTuple

from gputop_agent.runtime import frames, source, syntax
from gputop_agent.runtime.session import session
from gputop_agent.watchers import batch_origin

CERTAIN, LIKELY, GUARDED = range(3)  # a literal; a pole in reach; one that is kept off
_MAX_FUNCTIONS = 40
_HAS_A_POLE = frozenset(
    "sqrt rsqrt log log2 log10 std var reciprocal acos asin atanh logit div divide true_divide "
    "float_power".split()
)
_KEEPS_OFF = frozenset("clamp clip maximum max clamp_min nan_to_num".split())
_MAKES_SAMPLES = ("__getitem__", "__getitems__", "__iter__")


class Suspect(NamedTuple):
    """A line that can make such a value."""

    tier: int
    file: str
    line: int
    operation: str


class Made(NamedTuple):
    """``"data.py:9"`` and ``"std"``."""

    site: str
    operation: str
    tier: int


class Piece(NamedTuple):
    """A piece of source that may have made it."""

    file: str
    node: ast.AST


def of_call(file, line):
    """What is the likeliest to have made a value that the call in this line was given: what flows
    into it before what makes samples, unless that is surer; None where several are as likely.
    """
    on_its_way, in_samples = _likeliest(_flow_into(file, line)), _likeliest(_samples())
    if on_its_way is None or (in_samples is not None and in_samples.tier < on_its_way.tier):
        return in_samples
    return on_its_way


def _likeliest(parts):
    """The one place of the first tier that has any, among these parts and what they call."""
    suspects = [
        suspect for part in _with_called(parts) for suspect in _suspects(part.file, part.node)
    ]
    first = min((suspect.tier for suspect in suspects), default=None)
    likeliest = sorted(suspect for suspect in suspects if suspect.tier == first)
    site = source.place_of([(suspect.file, suspect.line) for suspect in likeliest])
    return Made(site, likeliest[0].operation, likeliest[0].tier) if site else None


# ---- what flows into a call


def _flow_into(file, line):
    """The arguments of a statement's calls, and the values of what they are made from."""
    scope = syntax.function_around(file, line) or syntax.tree(file)
    if scope is None:
        return []
    statements = [node for node in syntax.own_nodes(scope) if isinstance(node, ast.stmt)]
    simple = [node for node in statements if not hasattr(node, "body")]
    simple = [node for node in simple if syntax.has_line(node, line)]
    if not simple:
        return []
    calls = [node for node in ast.walk(simple[-1]) if isinstance(node, ast.Call)]
    arguments = [
        argument
        for call in calls
        for argument in (*call.args, *(keyword.value for keyword in call.keywords))
    ]
    wanted = {name for part in (*arguments, *_receivers(calls)) for name in _names(part)}
    before = sorted(
        (node for node in statements if node.lineno < simple[-1].lineno),
        key=lambda node: node.lineno,
        reverse=True,
    )
    values = list(arguments)
    for node in before:
        made, value = _assigned(node)
        if value is not None and made & wanted:
            values.append(value)
            wanted |= _names(value)
    return [Piece(file, value) for value in values]


def _receivers(calls):
    """``x`` of ``x.mean()``."""
    return [call.func.value for call in calls if isinstance(call.func, ast.Attribute)]


def _assigned(node) -> "tuple[set[str], Any]":
    """Names that a statement writes to, and what it writes."""
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
        targets = [node.target]
    elif isinstance(node, (ast.For, ast.AsyncFor)):
        return _names(node.target), node.iter
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return _names(node.value.func), node.value  # x.div_(y)
    else:
        return set(), None
    value = node if isinstance(node, ast.AugAssign) else node.value
    return {name for target in targets for name in _names(target)}, value


def _names(node):
    """``x`` and ``self.x`` of an expression; of ``self.x.y`` and ``x[0]`` as well."""
    found = set()
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and part.id != "self":
            found.add(part.id)
        elif isinstance(part, ast.Attribute) and _is_self(part.value):
            found.add("self." + part.attr)
    return found


def _is_self(node):
    return isinstance(node, ast.Name) and node.id == "self"


# ---- what they call


def _with_called(parts):
    """These parts, and the bodies of the user's functions that they call, each once."""
    todo, visited = list(parts), set()
    while todo and len(visited) < _MAX_FUNCTIONS:
        part = todo.pop(0)
        if id(part.node) in visited:
            continue
        visited.add(id(part.node))
        yield part
        for call in ast.walk(part.node):
            if isinstance(call, ast.Call):
                todo += _called(part.file, call.func)


def _called(file, function):
    """The function that a call goes to, where its name tells it."""
    if isinstance(function, ast.Name):
        within = _defined(file, function.id, in_class=False)
        return within[:1] or _imported(file, function.id)
    if isinstance(function, ast.Attribute):
        if not _is_self(function.value) and hasattr(session.torch.Tensor, function.attr):
            return []
        methods = _defined(file, function.attr, in_class=True)
        return methods if len(methods) == 1 else []
    return []


def _defined(file, name, in_class):
    nodes = syntax.nodes(file)
    methods = {
        node
        for parent in nodes
        if isinstance(parent, ast.ClassDef)
        for node in parent.body
        if isinstance(node, syntax.FUNCTION)
    }
    return [
        Piece(file, node)
        for node in nodes
        if isinstance(node, syntax.FUNCTION) and node.name == name and (node in methods) == in_class
    ]


def _imported(file, name):
    """A function that the file's module has from another of the user's."""
    for module in list(sys.modules.values()):
        if getattr(module, "__file__", None) == file:
            return _of_function(vars(module).get(name))
    return []


def _of_function(function):
    """Its source, of one of the user's."""
    code = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
    if code is None or frames.origin(code.co_filename) != frames.USER:
        return []
    around = syntax.function_around(code.co_filename, code.co_firstlineno)
    return [] if around is None else [Piece(code.co_filename, around)]


def _samples():
    """What makes the samples and the batches of the loader that feeds the training."""
    iterator, _, _ = batch_origin.current()
    parts = vars(iterator) if iterator is not None else {}
    dataset, found = parts.get("_dataset"), []
    for _ in range(4):
        if dataset is None:
            break
        for name in _MAKES_SAMPLES:
            found += _of_function(inspect.getattr_static(type(dataset), name, None))
        dataset = getattr(dataset, "__dict__", {}).get("dataset")
    return found + _of_function(parts.get("_collate_fn"))


# ---- what can make such a value


def _suspects(file, root):
    """Lines of a part, without those of functions within it."""
    for node in syntax.own_nodes(root):
        tier, operation = _judged(node)
        if operation:
            yield Suspect(tier, file, node.lineno, operation)


def _judged(node):
    """How likely a node makes such a value, and by what; ``""``: not at all."""
    if isinstance(node, ast.Attribute) and node.attr.lower() == "nan":
        return CERTAIN, "nan"
    if isinstance(node, ast.Call):
        return _judged_call(node)
    if isinstance(node, (ast.BinOp, ast.AugAssign)):
        divisor = node.right if isinstance(node, ast.BinOp) else node.value
        if isinstance(node.op, ast.Div) and not _is_constant(divisor):
            return (GUARDED if _is_kept_off(divisor) else LIKELY), "div"
    return GUARDED, ""


def _judged_call(call):
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    if name == "float" and call.args and isinstance(call.args[0], ast.Constant):
        text = str(call.args[0].value).lower().lstrip("+-")
        return CERTAIN, ("nan" if text == "nan" else "")
    if name.rstrip("_") not in _HAS_A_POLE:
        return GUARDED, ""
    given = [*call.args, getattr(call.func, "value", None)]
    guarded = any(part is not None and _is_kept_off(part) for part in given)
    settled = {keyword.arg for keyword in call.keywords} & {"correction", "unbiased", "ddof"}
    return (GUARDED if guarded or settled else LIKELY), name


def _is_constant(node):
    """A number, or a name in capitals; a size."""
    if isinstance(node, ast.Constant):
        return bool(node.value)
    if isinstance(node, ast.Name):
        return node.id.isupper()
    return isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("len", "float", "int")


def _is_kept_off(node):
    """Whether something is added to it, or it is cut off."""
    for part in ast.walk(node):
        if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Add):
            return True
        if isinstance(part, ast.Call):
            if getattr(part.func, "attr", getattr(part.func, "id", "")) in _KEEPS_OFF:
                return True
    return False
