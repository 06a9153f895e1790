"""The line of the user's that may have made a value which is not finite, where the model or the
loss was given it.

Nothing tells of values that carry no gradient, so the source is read: what flows into the call,
backwards through the assignments of its function, what those call, and how the data set makes its
samples. A line is told where one alone is the likeliest to make such a value. Where the data set
itself holds such values, that is seen, and the lines that fill its attribute are read.
"""

import ast
import inspect
import sys
from functools import lru_cache
from typing import Any, NamedTuple

from gputop_agent.runtime import frames, source, syntax, wrapped
from gputop_agent.runtime.session import session
from gputop_agent.timing.step_state import open_step
from gputop_agent.watchers.loaders import batch_origin
from gputop_agent.watchers.nan import held_values

CERTAIN, LIKELY, GUARDED = range(3)  # a literal; a pole in reach; one that is kept off
_MAX_FUNCTIONS = 40
_MAX_CALLERS = 3  # that a value is followed up through
_BY_A_NUMBER = frozenset("div divide true_divide pow float_power".split())
_HAS_A_POLE = _BY_A_NUMBER | frozenset(
    "sqrt rsqrt log log1p log2 log10 std var reciprocal acos asin arccos arcsin atanh logit".split()
)
_SPREADS = ("std", "var")
_KEEPS_OFF = frozenset(
    "clamp clip maximum max clamp_min nan_to_num abs relu softplus sigmoid exp".split()
)
_WHOLE = range(1, 100)
_MAKE_EMPTY = frozenset("zeros ones empty full zeros_like ones_like empty_like full_like".split())
_MAX_FILES = 40
_ASKS = frozenset("isnan isfinite isinf".split())
_RUN_BY_CALL = ("__call__", "forward")
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
    """Empty where the line only fills what holds such values."""
    tier: int
    held_in: str = ""
    """``"Prices.returns"``, where a data set was seen to hold such values."""


class SourcePart(NamedTuple):
    """A piece of source that may have made it."""

    file: str
    node: ast.AST


def of_call(file, line, layer="", owners=()):
    """What is the likeliest to have made a value that the call in this line was given: what flows
    into it before what makes samples and what the data set holds, unless a later one is surer; None
    where several lines of the first are as likely, and no other is surer.

    Args:
        layer: name of the layer that was given it, ``encoder.0``, where the line calls several.
        owners: ``[(name, object)]`` of the user's that running functions know: where what is
            divided by is an attribute of theirs, it is asked whether that is a number.
    """
    objects = held_values.objects_of(owner for _, owner in owners)
    of_function = _flow_into(file, line, callers=0, layer=layer)
    ways = (
        _called_in(file, line, layer),
        of_function,
        _flow_into(file, line, layer=layer),
        _samples(),
    )
    candidates = [
        *(_likeliest(parts, [*owners, *objects], is_told_alone=False) for parts in ways),
        _in_data(),
        _in_objects(of_function, [held for _, held in objects]),
    ]
    surest = min(filter(None, candidates), key=lambda place: place.tier, default=None)
    return surest if surest is not None and surest.site else None


def _likeliest(parts, owners=(), *, is_told_alone=True):
    """The one place of the first tier that has any, among these parts and what they call; where
    there are several, one without a site, or with ``is_told_alone`` None.
    """
    suspects = [
        suspect
        for part in _with_called(parts)
        for suspect in _suspects(part.file, part.node, owners)
    ]
    first = min((suspect.tier for suspect in suspects), default=None)
    likeliest = sorted(suspect for suspect in suspects if suspect.tier == first)
    likeliest = _without_spreads(likeliest)
    if not likeliest:
        return None
    site = source.place_of([(suspect.file, suspect.line) for suspect in likeliest])
    if not site and is_told_alone:
        return None
    return Made(site or "", likeliest[0].operation, likeliest[0].tier)


def _without_spreads(suspects):
    """A spread of several equal values is 0, which only what divides by it makes no number."""
    dividing = [suspect for suspect in suspects if suspect.operation.startswith("div")]
    without_spreads = [suspect for suspect in suspects if suspect.operation not in _SPREADS]
    return without_spreads if dividing else suspects


# ---- what flows into a call


def _flow_into(file, line, callers=_MAX_CALLERS, layer=""):
    """The arguments of a statement's calls, and the values of what they are made from; those that
    are parameters are followed up to where their function is called.
    """
    scope = syntax.function_around(file, line) or syntax.tree(file)
    statements = _statements(scope)
    simple = [node for node in statements if not hasattr(node, "body")]
    simple = [node for node in simple if syntax.has_line(node, line)]
    if not simple:
        return []
    values, names = _values_into(simple[-1], statements, layer.split("."))
    pieces = [SourcePart(file, value) for value in values]
    if callers and isinstance(scope, syntax.FUNCTION) and _parameters(scope) & names:
        for call_line in _calls_of(file, scope.name):
            pieces += _flow_into(file, call_line, callers - 1)
    return pieces


def _statements(scope):
    own_nodes = syntax.own_nodes(scope) if scope is not None else ()
    return [node for node in own_nodes if isinstance(node, ast.stmt)]


def _values_into(statement, statements, called=()):
    """The arguments of its calls, of those named in ``called`` where it has any, and what those
    before it assign to their names, the last first; and the names.
    """
    calls = [node for node in ast.walk(statement) if isinstance(node, ast.Call)]
    calls = [call for call in calls if syntax.called_name(call) in called] or calls
    arguments = []
    for call in calls:
        arguments += call.args
        arguments += [keyword.value for keyword in call.keywords]
    wanted = {name for part in (*arguments, *_receivers(calls)) for name in _names(part)}
    return _with_assigned(arguments, wanted, statement, statements)


def _with_assigned(arguments, wanted, statement, statements):
    """Values, and what statements before one assign to the wanted names; and all such names."""
    before = [node for node in statements if node.lineno < statement.lineno]
    for node in sorted(before, key=lambda node: node.lineno, reverse=True):
        targets, value = _assigned(node)
        if value is not None and targets & wanted:
            arguments.append(value)
            wanted |= _names(value)
    return arguments, wanted


def _parameters(function):
    arguments = function.args
    named = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    return {argument.arg for argument in named}


def _calls_of(file, name):
    """Lines in which a function or a method of this name is called."""
    calls = (node for node in syntax.nodes(file) if isinstance(node, ast.Call))
    return [
        call.lineno
        for call in calls
        if getattr(call.func, "id", "") == name
        or (getattr(call.func, "attr", "") == name and _is_self(getattr(call.func, "value", None)))
    ]


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
    names = set()
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and part.id != "self":
            names.add(part.id)
        elif isinstance(part, ast.Attribute) and _is_self(part.value):
            names.add("self." + part.attr)
    return names


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
        if methods or not _is_self(function.value):
            return methods if len(methods) == 1 else []
        return _of_object(file, function.attr)
    return []


def _of_object(file, attribute):
    """What a call of ``self.x`` runs, where ``self.x = Class(...)`` makes it."""
    classes = {
        syntax.called_name(value)
        for node in syntax.nodes(file)
        if isinstance(node, ast.Assign)
        for target, value in _pairs(node)
        if isinstance(value, ast.Call) and _names(target) == {"self." + attribute}
    }
    return [
        SourcePart(file, method)
        for node in syntax.nodes(file)
        if isinstance(node, ast.ClassDef) and node.name in classes
        for method in node.body
        if isinstance(method, syntax.FUNCTION) and method.name in _RUN_BY_CALL
    ]


def _defined(file, name, in_class):
    return _functions(file).get((name, in_class), [])


@lru_cache(maxsize=16)
def _functions(file):
    """``{(name, whether it is a method): [SourcePart]}``."""
    nodes, functions = syntax.nodes(file), {}
    methods = {
        node
        for parent in nodes
        if isinstance(parent, ast.ClassDef)
        for node in parent.body
        if isinstance(node, syntax.FUNCTION)
    }
    for node in nodes:
        if isinstance(node, syntax.FUNCTION):
            key = node.name, node in methods
            functions.setdefault(key, []).append(SourcePart(file, node))
    return functions


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
    return [] if around is None else [SourcePart(code.co_filename, around)]


def of_attribute(file, line, owners):
    """The ``Made`` of an infinity that flows into the line out of an object's attribute."""
    objects = held_values.objects_of(owner for _, owner in owners)
    return _in_objects(_flow_into(file, line, callers=0), [held for _, held in objects])


def _called_in(file, line, layer):
    """The bodies of the user's functions and methods that a line calls, if no layer."""
    calls = [node for node in syntax.nodes(file) if isinstance(node, ast.Call)]
    calls = [call for call in calls if syntax.has_line(call, line)]
    names = {syntax.called_name(call) for call in calls}
    if names & {*layer.split("."), *_RUN_BY_CALL}:
        return []
    bodies = []
    for call in calls:
        is_method = isinstance(call.func, ast.Attribute)
        defined = _defined(file, syntax.called_name(call), in_class=is_method)
        bodies += defined if len(defined) == 1 else []
    return bodies


def _in_data():
    """Where what the data set holds that is not finite comes from."""
    iterator, _, _ = batch_origin.current()
    dataset = vars(iterator).get("_dataset") if iterator is not None else None
    return _in_attribute(held_values.of_dataset(dataset))


def _in_objects(parts, objects):
    """Where an infinity comes from in an attribute that these parts of source name."""
    attributes = {name.partition(".")[2] for part in parts for name in _names(part.node)}
    return _in_attribute(held_values.of_objects(objects, attributes - {""}))


def _in_attribute(holder):
    """Where values not finite that an object was seen to hold come from: the likeliest line to
    make them of what flows into its attribute, else the one that fills it; None without either.
    """
    if holder is None:
        return None
    held_in = "%s.%s" % (holder.kind.__name__, holder.attribute)
    fills = _fills_of(holder)
    made = _likeliest([part for fill in fills for part in fill.parts])
    if (made is None or made.tier == GUARDED) and all(fill.is_given for fill in fills):
        made = _likeliest(_flow_into_loader())
    if made is not None and made.tier < GUARDED:
        return made._replace(tier=CERTAIN, held_in=held_in)
    site = source.place_of([(fill.file, fill.line) for fill in fills])
    return Made(site, "", CERTAIN, held_in) if site else None


class _Fill(NamedTuple):
    """A statement that fills an attribute, what flows into it, and whether some of that is a
    parameter's.
    """

    file: str
    line: int
    parts: "list[SourcePart]"
    is_given: bool


def _fills_of(holder):
    """Those of the nearest class that has any: one that overrides a method may leave out the
    other's; else those of other functions of the user's.
    """
    for base in holder.kind.__mro__:
        methods = [method for value in vars(base).values() for method in _of_function(value)]
        fills = [fill for method in methods for fill in _fills(method, holder.attribute)]
        if fills:
            return fills
    return [
        fill
        for file in source.users_files()[:_MAX_FILES]
        for node in syntax.nodes(file)
        if isinstance(node, syntax.FUNCTION)
        for fill in _fills(SourcePart(file, node), holder.attribute, is_own=False)
    ]


def _fills(method, attribute, *, is_own=True):
    """Statements of a method that fill an attribute of ``self``, or of another object."""
    statements = _statements(method.node)
    for statement in statements:
        for target, value in _filled(statement):
            if not _is_attribute(target, attribute, is_own) or _is_empty(value):
                continue
            values, names = _with_assigned([value], _names(value), statement, statements)
            parts = [SourcePart(method.file, value) for value in values]
            is_given = bool(_parameters(method.node) & names)
            yield _Fill(method.file, statement.lineno, parts, is_given)


def _filled(statement):
    """What a statement fills, each with its value: of ``a, b = x, y`` two."""
    if isinstance(statement, ast.Assign):
        pairs = _pairs(statement)
        together = isinstance(statement.value, ast.Tuple) and len(pairs) > len(statement.targets)
        return pairs[len(statement.targets) :] if together else pairs
    targets, value = _assigned(statement)
    if value is None or not targets:
        return []
    if isinstance(statement, ast.Expr):
        return [(value.func, value)]  # x.append(y)
    return [(statement.target, value)]


def _is_attribute(target, attribute, is_own):
    """Whether ``self.x``, ``self.x[i]`` or ``self.x.append`` is meant, or the same of another."""
    return any(
        isinstance(part, ast.Attribute)
        and part.attr == attribute
        and _is_self(part.value) == is_own
        for part in ast.walk(target)
    )


def _is_empty(value):
    """``[]``, ``{}``, ``list()``, ``None``, ``np.zeros(n)``: what is filled later."""
    if isinstance(value, ast.Call):
        if syntax.called_name(value) in _MAKE_EMPTY:
            return True
        is_method = isinstance(value.func, ast.Attribute)
        return not (is_method or value.args or value.keywords)
    return not any(isinstance(part, (ast.Name, ast.Call)) for part in ast.walk(value))


def _flow_into_loader():
    """What flows into the line that builds the training's loader."""
    site = (open_step.loader or {}).get("site") or ""
    file, line = frames.file_of(site), site.rpartition(":")[2]
    return _flow_into(file, int(line)) if file and line.isdigit() else []


def _samples():
    """What makes the samples and the batches of the loader that feeds the training."""
    iterator, _, _ = batch_origin.current()
    parts = vars(iterator) if iterator is not None else {}
    makers = []
    for dataset in wrapped.datasets(parts.get("_dataset")):
        for name in _MAKES_SAMPLES:
            makers += _of_function(inspect.getattr_static(type(dataset), name, None))
    return makers + _of_function(_function_of(parts.get("_collate_fn")))


def _function_of(collate):
    """The function that a collate function runs, where it is an object that is called, or a
    partial.
    """
    collate = getattr(collate, "func", collate)
    if inspect.isroutine(collate):
        return collate
    return inspect.getattr_static(type(collate), "__call__", None)


def _pairs(assign):
    """Each target of an assignment with its value: of ``a, b = x, y`` two."""
    pairs = [(target, assign.value) for target in assign.targets]
    for target, value in pairs:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            pairs += zip(target.elts, value.elts)
    return pairs


# ---- what can make such a value


def _suspects(file, root, owners):
    """Lines of a part, without those of functions within it."""
    may_be_nan, silenced = _asked_about(root), _silenced(root)
    for node in syntax.own_nodes(root):
        tier, operation = _judged(node, owners)
        if operation and tier == LIKELY and node in silenced:
            tier = CERTAIN
        if operation:
            yield Suspect(tier, file, node.lineno, operation)
        elif _is_masked(node, may_be_nan) and not _is_kept_off(node):  # 0 times NaN is NaN
            yield Suspect(CERTAIN, file, node.lineno, "mul")


def _silenced(root):
    """Nodes below ``with np.errstate(divide="ignore")``: somebody knows that they divide by 0."""
    return {
        node
        for block in syntax.own_nodes(root)
        if isinstance(block, ast.With)
        if any(_silences(item.context_expr) for item in block.items)
        for statement in block.body
        for node in ast.walk(statement)
    }


def _silences(context):
    if not isinstance(context, ast.Call) or syntax.called_name(context) != "errstate":
        return False
    return any(getattr(keyword.value, "value", "") == "ignore" for keyword in context.keywords)


def _asked_about(root):
    """Names that stand for whether values are finite."""
    named = set()
    for node in syntax.own_nodes(root):
        if isinstance(node, ast.Assign):
            if _asks(node.value):
                named |= {name for target in node.targets for name in _names(target)}
    return named


def _is_masked(node, masks):
    """Whether values are multiplied by one of such names, or by such a question."""
    is_product = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)
    return is_product and (bool(_names(node) & masks) or _asks(node))


def _asks(node):
    calls = (part for part in ast.walk(node) if isinstance(part, ast.Call))
    return any(syntax.called_name(call) in _ASKS for call in calls)


def _judged(node, owners):
    """How likely a node makes such a value, and by what; ``""``: not at all."""
    if isinstance(node, ast.Attribute) and node.attr.lower() == "nan":
        return CERTAIN, "nan"
    if isinstance(node, ast.Call):
        return _judged_call(node)
    if isinstance(node, (ast.BinOp, ast.AugAssign)):
        right = node.right if isinstance(node, ast.BinOp) else node.value
        if isinstance(node.op, ast.Div) and not _is_constant(right):
            is_safe = _is_kept_off(right) or _has_no_zero(owners, right)
            return (GUARDED if is_safe else LIKELY), "div"
        if isinstance(node.op, ast.Pow) and not _is_whole(right):
            base = node.left if isinstance(node, ast.BinOp) else node.target
            return (GUARDED if _is_kept_off(base) else LIKELY), "pow"
    return GUARDED, ""


def _judged_call(call):
    name = syntax.called_name(call)
    if name == "float" and call.args and isinstance(call.args[0], ast.Constant):
        text = str(call.args[0].value).lower().lstrip("+-")
        return CERTAIN, ("nan" if text == "nan" else "")
    if name.rstrip("_") not in _HAS_A_POLE:
        return GUARDED, ""
    operands = [*call.args, getattr(call.func, "value", None)]
    number = call.args[-1] if call.args else None
    if name.rstrip("_") in ("pow", "float_power"):
        if _is_whole(number):
            return GUARDED, ""
    elif name.rstrip("_") in _BY_A_NUMBER and _is_constant(number):
        return GUARDED, ""
    guarded = any(part is not None and _is_kept_off(part) for part in operands)
    settled = {keyword.arg for keyword in call.keywords} & {"correction", "unbiased", "ddof"}
    return (GUARDED if guarded or settled else LIKELY), name


def _is_whole(node):
    """An exponent that every base can have."""
    return isinstance(node, ast.Constant) and node.value in _WHOLE


def _is_constant(node):
    """A number, or a name in capitals; a size."""
    if isinstance(node, ast.Constant):
        return bool(node.value)
    if isinstance(node, ast.Name):
        return node.id.isupper()
    return isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("len", "float", "int")


def _has_no_zero(owners, node):
    """Whether it is ``self.x``, ``self.x[i]`` or ``config.x.y`` of one of them, and a number but 0,
    or a small tensor without one.
    """
    path = []
    while isinstance(node, ast.Subscript):
        node = node.value
    while isinstance(node, ast.Attribute):
        path.append(node.attr)
        node = node.value
    if not path or not isinstance(node, ast.Name):
        return False
    candidates = [value for name, value in owners if name == node.id]
    for attribute in reversed(path):
        candidates = [_own(value, attribute) for value in candidates]
    if any(type(value) in (int, float) and value for value in candidates):
        return True
    tensors = [value for value in candidates if isinstance(value, session.torch.Tensor)]
    return bool(tensors) and all(map(held_values.is_without_zero, tensors))


def _own(value, attribute):
    """What an object has as an attribute of its own; no code of its class is run."""
    member = getattr(type(value), "__dict__", {}).get(attribute)
    if inspect.ismemberdescriptor(member):  # of a class with slots
        return getattr(value, attribute, None)
    return (getattr(value, "__dict__", None) or {}).get(attribute)


def _is_kept_off(node):
    """Whether something is added to it, or it is cut off."""
    for part in ast.walk(node):
        if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Add):
            return True
        if isinstance(part, ast.Call):
            if syntax.called_name(part) in _KEEPS_OFF:
                return True
    return False
