"""Finds the ``for`` loops and comprehensions that an instruction lies in, from its bytecode.

The lines of a loop are one place: none of them may hold most of the looks, and all together do.
"""

from gputop_agent.runtime.lines import instructions_of

_MAX_KNOWN = 4096

_known = {}  # code -> [(offset of the first instruction, offset after the last, line)]


def headers(code, instruction):
    """Lines of the loops around the instruction at that offset, the outermost first."""
    loops = _known.get(code)
    if loops is None:
        if len(_known) >= _MAX_KNOWN:
            _known.clear()
        loops = _known[code] = _loops(code)
    return [line for first, end, line in loops if first <= instruction < end]


def _loops(code):
    return [
        (instruction.offset, instruction.argval, line)
        for instruction, line in instructions_of(code)
        if instruction.opname == "FOR_ITER"
    ]
