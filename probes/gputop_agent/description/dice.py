"""Where a dataset's class makes or seeds a generator of random numbers."""

import ast
import sys

from gputop_agent.runtime import frames, source, syntax

_MAKES = {"default_rng", "RandomState", "Random", "Generator", "manual_seed", "seed"}
_MAX_WRAPPED = 4


def rolled_at(dataset):
    """``"data.py:9"``, the first such line of its class or of that of a dataset within it; None
    without one.
    """
    for _ in range(_MAX_WRAPPED):
        if dataset is None:
            return None
        at = _in_class(type(dataset))
        if at:
            return at
        dataset = getattr(dataset, "__dict__", {}).get("dataset")  # Subset and its like
    return None


def _in_class(kind):
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    if file is None or frames.origin(file) != frames.USER:
        return None
    lines = [
        call.lineno
        for node in syntax.nodes(file)
        if isinstance(node, ast.ClassDef) and node.name == kind.__name__
        for call in ast.walk(node)
        if isinstance(call, ast.Call) and _name_of(call.func) in _MAKES
    ]
    return source.place(file, min(lines)) if lines else None


def _name_of(function):
    return getattr(function, "attr", getattr(function, "id", ""))
