"""Where a dataset's class makes or seeds a generator of random numbers."""

import ast
import sys

from gputop_agent.runtime import frames, source, syntax, wrapped

_MAKES = {"default_rng", "RandomState", "Random", "Generator", "manual_seed", "seed"}


def rolled_at(dataset):
    """``"data.py:9"``, the first such line of its class or of that of a dataset within it; None
    without one.
    """
    places = (_in_class(type(part)) for part in wrapped.datasets(dataset))
    return next(filter(None, places), None)


def _in_class(kind):
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    if file is None or frames.origin(file) != frames.USER:
        return None
    lines = [
        call.lineno
        for node in syntax.nodes(file)
        if isinstance(node, ast.ClassDef) and node.name == kind.__name__
        for call in ast.walk(node)
        if isinstance(call, ast.Call) and syntax.called_name(call) in _MAKES
    ]
    return source.place(file, min(lines)) if lines else None
