"""Reads a pickle of plain values: dicts, lists, tuples, text, numbers, None. Whatever else it asks
for is refused.

A machine of our own and not ``pickle.Unpickler``: no opcode that imports, calls or builds exists
here, and none lets a short file ask for much memory (the standard one grows its memo to any index
that a file names).
"""

from __future__ import annotations

import gc
import re
from struct import Struct
from typing import Any

_PROTOCOL_MARK = b"\x80"
_HIGHEST_PROTOCOL = 5
_LINE_AT_MOST = 1 << 16
"""Bytes of a text that protocol 0 writes on one line."""
_DIGITS_AT_MOST = 40
_OBJECTS_AT_MOST = 100_000_000
"""Values of one file: 100 bytes each would be 10 GB."""
_OLD_BEGINNING = re.compile(rb"\([dl]p0\n|[}\]]q\x00")
"""Of protocol 0 and 1, which have no mark: an empty dict or list that is kept in the memo."""
_INT4, _UINT2, _UINT4, _UINT8 = Struct("<i"), Struct("<H"), Struct("<I"), Struct("<Q")
_FLOAT = Struct(">d")


class UnpickleError(ValueError):
    """The bytes are no pickle of plain values; the message says what, without the file."""


def plain_values(data: bytes) -> Any:
    """The value that a pickle of protocol 0 to 5 holds.

    Raises:
        UnpickleError: it is cut off or damaged, or holds anything but plain values.
    """
    collecting = gc.isenabled()
    gc.disable()  # it would look through millions of values that are all alive
    try:
        return _Machine(data).run()
    except UnpickleError:
        raise
    except (IndexError, KeyError, TypeError, ValueError, AttributeError, ArithmeticError):
        raise UnpickleError("the pickle is damaged or cut off") from None
    except Exception as error:  # struct.error is none of the above
        raise UnpickleError(f"the pickle is damaged: {error}") from None
    finally:
        if collecting:
            gc.enable()


class _Machine:
    """The stack and the memo of one pickle."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.stack: list[Any] = []
        self.outer: list[list[Any]] = []
        """Stacks below the marks."""
        self.memo: dict[int, Any] = {}

    def run(self) -> Any:
        """Play opcodes up to STOP."""
        data, operations, last = self.data, _OPERATIONS, len(self.data)
        for _ in range(_OBJECTS_AT_MOST):
            if self.at >= last:
                raise UnpickleError("the pickle is cut off")
            code = data[self.at]
            self.at += 1
            if code == 0x2E:  # STOP
                return self.stack[-1]
            operation = operations.get(code)
            if operation is None:
                raise UnpickleError(_refusal(code, data))
            operation(self)
        raise UnpickleError("the pickle holds too many values")

    def take(self, count: int) -> bytes:
        """The next ``count`` bytes."""
        start = self.at
        self.at = start + count
        if self.at > len(self.data):
            raise UnpickleError("the pickle is cut off")
        return self.data[start : self.at]

    def number(self, layout: Struct) -> Any:
        """The next number."""
        value = layout.unpack_from(self.data, self.at)[0]
        self.at += layout.size
        return value

    def line(self, limit: int) -> bytes:
        """The bytes up to the end of a line of protocol 0."""
        end = self.data.find(b"\n", self.at, self.at + limit + 1)
        if end < 0:
            raise UnpickleError("the pickle is cut off")
        start, self.at = self.at, end + 1
        return self.data[start:end]

    def to_mark(self) -> list[Any]:
        """The values above the last mark, taken off."""
        values = self.stack
        self.stack = self.outer.pop()
        return values


def _refusal(code: int, data: bytes) -> str:
    if chr(code) in "c\x93Ri\x81\x92bo\x82\x83\x84PQ":
        return "the pickle would import or call something, and only plain values are read"
    if not begins_a_pickle(data):
        return "it is no pickle as torch writes them"
    return f"the pickle has an opcode that snapshots do not have (0x{code:02x})"


def begins_a_pickle(data: bytes) -> bool:
    """Whether bytes begin as a pickle of a dict or a list does, of protocol 0 to 5."""
    return data.startswith(_PROTOCOL_MARK) or _OLD_BEGINNING.match(data) is not None


def _protocol(machine: _Machine) -> None:
    if machine.take(1)[0] > _HIGHEST_PROTOCOL:
        raise UnpickleError("the pickle has a newer protocol than 5")


def _frame(machine: _Machine) -> None:
    machine.take(8)


def _mark(machine: _Machine) -> None:
    machine.outer.append(machine.stack)
    machine.stack = []


def _get_short(machine: _Machine) -> None:
    machine.stack.append(machine.memo[machine.data[machine.at]])
    machine.at += 1


def _get_long(machine: _Machine) -> None:
    machine.stack.append(machine.memo[_UINT4.unpack_from(machine.data, machine.at)[0]])
    machine.at += 4


def _put_short(machine: _Machine) -> None:
    machine.memo[machine.take(1)[0]] = machine.stack[-1]


def _put_long(machine: _Machine) -> None:
    machine.memo[machine.number(_UINT4)] = machine.stack[-1]


def _memoize(machine: _Machine) -> None:
    machine.memo[len(machine.memo)] = machine.stack[-1]


def _empty_dict(machine: _Machine) -> None:
    machine.stack.append({})


def _empty_list(machine: _Machine) -> None:
    machine.stack.append([])


def _empty_tuple(machine: _Machine) -> None:
    machine.stack.append(())


def _set_items(machine: _Machine) -> None:
    values = machine.to_mark()
    target = machine.stack[-1]
    if type(target) is not dict:
        raise TypeError
    target.update(zip(values[::2], values[1::2], strict=True))


def _set_item(machine: _Machine) -> None:
    value, key = machine.stack.pop(), machine.stack.pop()
    target = machine.stack[-1]
    if type(target) is not dict:
        raise TypeError
    target[key] = value


def _new_dict(machine: _Machine) -> None:
    values = machine.to_mark()
    machine.stack.append(dict(zip(values[::2], values[1::2], strict=True)))


def _new_list(machine: _Machine) -> None:
    values = machine.to_mark()
    machine.stack.append(values)


def _append(machine: _Machine) -> None:
    value = machine.stack.pop()
    target = machine.stack[-1]
    if type(target) is not list:
        raise TypeError
    target.append(value)


def _appends(machine: _Machine) -> None:
    values = machine.to_mark()
    target = machine.stack[-1]
    if type(target) is not list:
        raise TypeError
    target.extend(values)


def _tuple(machine: _Machine) -> None:
    values = tuple(machine.to_mark())
    machine.stack.append(values)


def _tuple_of(count: int) -> Any:
    def build(machine: _Machine) -> None:
        values = tuple(machine.stack[-count:])
        if len(values) != count:
            raise IndexError
        machine.stack[-count:] = [values]

    return build


def _constant(value: object) -> Any:
    def push(machine: _Machine) -> None:
        machine.stack.append(value)

    return push


def _number(layout: Struct) -> Any:
    def push(machine: _Machine) -> None:
        machine.stack.append(layout.unpack_from(machine.data, machine.at)[0])
        machine.at += layout.size

    return push


def _byte(machine: _Machine) -> None:
    machine.stack.append(machine.data[machine.at])
    machine.at += 1


def _long(machine: _Machine) -> None:
    machine.stack.append(int.from_bytes(machine.take(machine.take(1)[0]), "little", signed=True))


_BOOLEANS = {b"00": False, b"01": True}


def _number_in_words(machine: _Machine) -> None:
    words = machine.line(_DIGITS_AT_MOST)
    value = _BOOLEANS.get(words)
    machine.stack.append(int(words.removesuffix(b"L")) if value is None else value)


def _float_in_words(machine: _Machine) -> None:
    machine.stack.append(float(machine.line(_DIGITS_AT_MOST)))


def _text_on_a_line(machine: _Machine) -> None:
    machine.stack.append(machine.line(_LINE_AT_MOST).decode("raw-unicode-escape"))


def _get_in_words(machine: _Machine) -> None:
    machine.stack.append(machine.memo[int(machine.line(_DIGITS_AT_MOST))])


def _put_in_words(machine: _Machine) -> None:
    machine.memo[int(machine.line(_DIGITS_AT_MOST))] = machine.stack[-1]


def _text(layout: Struct) -> Any:
    def push(machine: _Machine) -> None:
        text = machine.take(machine.number(layout)).decode("utf-8", "surrogatepass")
        machine.stack.append(text)

    return push


def _bytes(layout: Struct) -> Any:
    def push(machine: _Machine) -> None:
        machine.stack.append(machine.take(machine.number(layout)))

    return push


_UINT1 = Struct("<B")
_OPERATIONS = {
    ord("\x80"): _protocol,
    ord("\x95"): _frame,
    ord("("): _mark,
    ord("h"): _get_short,
    ord("j"): _get_long,
    ord("q"): _put_short,
    ord("r"): _put_long,
    ord("\x94"): _memoize,
    ord("}"): _empty_dict,
    ord("]"): _empty_list,
    ord(")"): _empty_tuple,
    ord("u"): _set_items,
    ord("s"): _set_item,
    ord("e"): _appends,
    ord("a"): _append,
    ord("t"): _tuple,
    ord("\x85"): _tuple_of(1),
    ord("\x86"): _tuple_of(2),
    ord("\x87"): _tuple_of(3),
    ord("N"): _constant(None),
    ord("\x88"): _constant(True),
    ord("\x89"): _constant(False),
    ord("d"): _new_dict,
    ord("l"): _new_list,
    ord("I"): _number_in_words,
    ord("L"): _number_in_words,
    ord("F"): _float_in_words,
    ord("V"): _text_on_a_line,
    ord("g"): _get_in_words,
    ord("p"): _put_in_words,
    ord("K"): _byte,
    ord("M"): _number(_UINT2),
    ord("J"): _number(_INT4),
    ord("G"): _number(_FLOAT),
    ord("\x8a"): _long,
    ord("\x8c"): _text(_UINT1),
    ord("X"): _text(_UINT4),
    ord("\x8d"): _text(_UINT8),
    ord("C"): _bytes(_UINT1),
    ord("B"): _bytes(_UINT4),
    ord("\x8e"): _bytes(_UINT8),
}
