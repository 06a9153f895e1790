"""Finds the ``for`` loops and comprehensions that an instruction lies in, from its bytecode.

The lines of a loop are one place: none of them may hold most of the looks, and all together do.
"""

import dis

_MAX_KNOWN = 4096
_MAX_BYTES = 32768  # of bytecode: longer functions are made by programs, and slow to read

_known = {}  # code -> [(offset of the first instruction, offset after the last, line)]


def headers(code, instruction):
    """Lines of the loops around the instruction at that offset, the outermost first."""
    found = _known.get(code)
    if found is None:
        if len(_known) >= _MAX_KNOWN:
            _known.clear()
        found = _known[code] = _loops(code)
    return [line for first, end, line in found if first <= instruction < end]


def _loops(code):
    if len(code.co_code) > _MAX_BYTES:
        return []
    starts, found, line = dict(dis.findlinestarts(code)), [], code.co_firstlineno
    for one in dis.get_instructions(code):
        line = starts.get(one.offset) or line
        if one.opname == "FOR_ITER":
            found.append((one.offset, one.argval, line))
    return found
