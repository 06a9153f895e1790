"""The line that a frame is on, also where the compiler gave its instruction none."""

import dis

_MAX_KNOWN = 1024
_MAX_BYTES = 32768  # of bytecode: longer functions are made by programs, and slow to read

_known = {}  # (code, offset of an instruction without a line) -> line
_jumps = frozenset(dis.hasjrel + dis.hasjabs)


def line_of(frame):
    """Its line. The jump back after an ``if`` that ends a loop has none from Python 3.11 on, and a
    thread gives up the GIL just there: it counts to the first ``if`` that leads to it.
    """
    return frame.f_lineno or _without(frame.f_code, frame.f_lasti)


def _without(code, offset):
    key = code, offset
    line = _known.get(key)
    if line is None:
        if len(_known) >= _MAX_KNOWN:
            _known.clear()
        line = _known[key] = _leading_to(code, offset) or code.co_firstlineno
    return line


def _leading_to(code, offset):
    lines = [
        line
        for instruction, line in instructions_of(code)
        if instruction.opcode in _jumps and instruction.argval == offset
    ]
    return min(lines, default=0)


def instructions_of(code):
    """Instructions with the lines that they are on; none of a function too long to be read."""
    if len(code.co_code) > _MAX_BYTES:
        return
    starts, line = dict(dis.findlinestarts(code)), code.co_firstlineno
    for instruction in dis.get_instructions(code):
        line = starts.get(instruction.offset) or line
        yield instruction, line
