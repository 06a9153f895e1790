"""Tells tensor work in the user's own lines from host code.

Torch's operators are C: a stack sample that falls into ``logits = u @ v.T`` ends in the user's line
and looks like one in ``time.sleep``. The instruction that the frame stands at tells them apart.
Between forward and backward it is tensor work if its text is an operator, a call of torch or of a
method that tensors have; elsewhere, where tensors may well be computed for statistics, only updates
in place count. Needs the columns of instructions (Python 3.11); before that nothing is known to be
tensor work.
"""

import ast
import linecache
import types
from itertools import islice

from gputop_agent.runtime import interrupts, syntax
from gputop_agent.runtime.session import session
from gputop_agent.timing.step_state import NO_GAP, open_step

_MAX_KNOWN = 4096
_HOST = frozenset(
    ("item", "tolist", "numpy", "cpu", "cuda", "to", "pin_memory", "share_memory_", "backward")
)
_PLAIN = (list, dict, set, str, bytes, bytearray, int, float)
_OPERATORS = (ast.BinOp, ast.UnaryOp, ast.Compare, ast.Subscript, ast.AugAssign)

#: packages whose work on tensors is for the eyes, wherever in a step it is done
_METRICS = ("torchmetrics", "torcheval", "ignite", "evaluate")

_known = {}  # (code, instruction, in a loss) -> label


def label(frame):
    """``"torch/_C mean"`` where the frame of user code stands in tensor work, else empty."""
    key = frame.f_code, frame.f_lasti, _in_loss()
    label_ = _known.get(key)
    if label_ is None:
        if len(_known) >= _MAX_KNOWN:
            _known.clear()
        in_loss = key[2] and not _is_for_arrays(frame.f_code, frame.f_globals)
        label_ = _known[key] = _label(_node(*key[:2]), frame.f_globals, in_loss)
    return label_


def _is_for_arrays(code, names):
    """Whether a function has to do with NumPy and not with torch: its operators are of arrays."""
    packages = {_package(names[name]) for name in code.co_names if name in names}
    return "numpy" in packages and "torch" not in packages


def label_in_package(frame, package):
    """The same of a frame of a package's code, which only a loss makes tensor work: GPyTorch
    decomposes matrices after its forward has returned.
    """
    computes = _is_torchs(frame.f_globals.get("torch")) and package not in _METRICS
    return label(frame) if computes and _in_loss() else ""


def _in_loss():
    """Whether a forward with gradients has ended before its backward; True without modules.

    And where gradients came from ``autograd.grad``, until an optimizer steps: what is done with
    them is the script's own part of the update.
    """
    by_hand = open_step.grads and not (open_step.backwards or open_step.pending)
    return open_step.gap_phase != NO_GAP or not session.roots or bool(by_hand)


def _label(node, names, in_loss):
    if isinstance(node, ast.Call):
        method = ""
        if isinstance(node.func, ast.Attribute):
            method = node.func.attr
        in_place = (
            method.endswith("_") and hasattr(session.torch.Tensor, method) and method not in _HOST
        )
        work = in_place or (in_loss and _is_torch_call(node.func, names))
    else:
        work = isinstance(node, _OPERATORS) and (in_loss or _mentions_gradient(node))
    return "torch/_C " + _name(node) if work else ""


def _node(code, instruction):
    """The expression or statement of the instruction; None where its text cannot be had."""
    if not hasattr(code, "co_positions") or instruction < 0:
        return None
    position = next(islice(code.co_positions(), instruction // 2, None), ())
    if not position or None in position:
        return None
    first, last, begin, end = position
    lines = [linecache.getline(code.co_filename, line).encode() for line in range(first, last + 1)]
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][begin:]
    text = b"".join(lines).decode()
    for source in ("(" + text + ")", text):
        try:
            body = syntax.parse(source).body[0]
            return body.value if isinstance(body, ast.Expr) else body
        except (SyntaxError, IndexError):
            interrupts.pass_on()
            continue
    return None


def _is_torch_call(callee, names):
    if isinstance(callee, ast.Name):
        return _is_torchs(names.get(callee.id))
    if not isinstance(callee, ast.Attribute):
        return False
    root = callee
    while isinstance(root, ast.Attribute):
        root = root.value
    owner = names.get(root.id) if isinstance(root, ast.Name) else None
    if isinstance(owner, types.ModuleType):
        return _is_torchs(owner)
    return _is_tensor_method(callee.attr)


def _is_torchs(thing):
    return _package(thing) == "torch"


def _package(thing):
    """The package that a module, function or class is of; empty: none is named."""
    if isinstance(thing, types.ModuleType):
        name = thing.__name__
    else:
        name = getattr(thing, "__module__", None)
    return name.partition(".")[0] if isinstance(name, str) else ""


def _is_tensor_method(name):
    """Of a method of an unknown owner: only tensors have it, or arrays, without a loss."""
    return (
        name not in _HOST
        and hasattr(session.torch.Tensor, name)
        and not any(hasattr(class_, name) for class_ in _PLAIN)
    )


def _mentions_gradient(node):
    return any(isinstance(part, ast.Attribute) and part.attr == "grad" for part in ast.walk(node))


def _name(node):
    if isinstance(node, ast.Call):
        return getattr(node.func, "attr", "") or getattr(node.func, "id", "call")
    return "operator"
