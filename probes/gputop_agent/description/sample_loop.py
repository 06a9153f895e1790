"""Where an IterableDataset's class goes through its samples."""

import ast
import inspect

from gputop_agent.runtime import frames, source, syntax


def looped_at(dataset):
    """``"data.py:9"``, the first loop over something in its ``__iter__``, or where that begins;
    None where a package has it.
    """
    method = inspect.getattr_static(type(dataset), "__iter__", None)
    code = getattr(method, "__code__", None)
    if code is None or frames.origin(code.co_filename) != frames.USER:
        return None
    function = syntax.function_around(code.co_filename, code.co_firstlineno)
    nodes = list(syntax.own_nodes(function)) if function is not None else []
    over_samples = [node.lineno for node in nodes if isinstance(node, ast.For)]
    loops = over_samples or [node.lineno for node in nodes if isinstance(node, ast.While)]
    return source.place(code.co_filename, min(loops, default=code.co_firstlineno))
