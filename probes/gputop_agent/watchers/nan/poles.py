"""Lines that can make a value which is not finite: a literal, a division, what has a pole."""

import ast
import inspect
from typing import NamedTuple

from gputop_agent.runtime import syntax
from gputop_agent.runtime.session import session
from gputop_agent.watchers.nan import held_values, value_flow

CERTAIN, LIKELY, GUARDED = range(3)  # a literal; a pole in reach; one that is kept off
SPREADS = ("std", "var")
_BY_A_NUMBER = frozenset("div divide true_divide pow float_power".split())
_HAS_A_POLE = _BY_A_NUMBER | frozenset(
    "sqrt rsqrt log log1p log2 log10 std var reciprocal acos asin arccos arcsin atanh logit".split()
)
_KEEPS_OFF = frozenset(
    "clamp clip maximum max clamp_min nan_to_num abs relu softplus sigmoid exp".split()
)
_WHOLE = range(1, 100)
_ASKS = frozenset("isnan isfinite isinf".split())


class Suspect(NamedTuple):
    """A line that can make such a value."""

    tier: int
    file: str
    line: int
    operation: str


def suspects(file, root, owners):
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
                named |= {name for target in node.targets for name in value_flow.names_in(target)}
    return named


def _is_masked(node, masks):
    """Whether values are multiplied by one of such names, or by such a question."""
    is_product = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)
    return is_product and (bool(value_flow.names_in(node) & masks) or _asks(node))


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
