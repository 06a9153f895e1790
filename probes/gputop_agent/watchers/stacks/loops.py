"""Finds the ``for`` loops and comprehensions that an instruction lies in, from its bytecode.

The lines of a loop are one place: none of them may hold most of the looks, and all together do.
"""

import dis

_MAX_KNOWN = 4096
_MAX_BYTES = 32768  # of bytecode: longer functions are made by programs, and slow to read

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
    if len(code.co_code) > _MAX_BYTES:
        return []
    starts, loops, line = dict(dis.findlinestarts(code)), [], code.co_firstlineno
    for instruction in dis.get_instructions(code):
        line = starts.get(instruction.offset) or line
        if instruction.opname == "FOR_ITER":
            loops.append((instruction.offset, instruction.argval, line))
    return loops
