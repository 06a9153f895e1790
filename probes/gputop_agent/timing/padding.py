"""Places of a batch that hold no token: by its attention mask, else where rows end, or begin, with
one value that is nowhere else in them.

Read from the memory of tensors on the CPU; no operation of torch's runs.
"""

import ctypes
import math
from collections import Counter
from typing import Any, NamedTuple

MASK_NAME = "attention_mask"
_BYTES = 1 << 16  # of a tensor that are read at most
_FORMATS = {
    "torch.int64": "q",
    "torch.int32": "i",
    "torch.int16": "h",
    "torch.int8": "b",
    "torch.uint8": "B",
    "torch.bool": "B",
}
_OF_TOKENS = ("torch.int64", "torch.int32")
_LEAST_ROWS, _LEAST_WIDTH = 4, 8  # fewer values are alike by chance


class Counted(NamedTuple):
    """Of a batch."""

    places: int
    tokens: int
    kept: int
    """Places, if it were cut to its longest row."""
    filling: Any = None
    """The value that fills it; None where a mask told."""
    beside: int = 0
    """Values of other inputs, such as pictures or sound, on which the model works, too."""


def is_plain(tensor):
    """Whether it is a tensor of torch's own class, dense."""
    of_torch = type(tensor).__module__ == "torch" and type(tensor).__name__ == "Tensor"
    return of_torch and str(tensor.layout) == "torch.strided"


def content(tensor, at_most):
    """The first ``at_most`` bytes of a plain, contiguous CPU tensor, in place; else None."""
    if not is_plain(tensor) or not tensor.is_contiguous():
        return None
    size = min(tensor.numel() * tensor.element_size(), at_most)
    address = tensor.data_ptr()
    if address and size > 0:
        return (ctypes.c_char * size).from_address(address)
    return None


def counted(named_tensors):
    """What a batch tells, ``[(name or index, tensor)]`` of its outermost; None: nothing."""
    texts = _of_texts(named_tensors)
    return texts and texts._replace(beside=sum(_beside(tensor) for _, tensor in named_tensors))


def _beside(tensor):
    is_input = tensor.dtype.is_floating_point and len(tensor.shape) > 1
    return math.prod(tensor.shape) if is_input else 0


def _of_texts(named_tensors):
    masks = [tensor for name, tensor in named_tensors if name == MASK_NAME]
    if masks:
        return _by_mask(_rows(masks[0]))
    tables = [tensor for _, tensor in named_tensors if len(tensor.shape) == 2]
    tokens = next((tensor for tensor in tables if str(tensor.dtype) in _OF_TOKENS), None)
    return None if tokens is None else _by_filling(_rows(tokens))


def _rows(tensor):
    """The first rows of a table of whole numbers, as lists; empty for any other tensor."""
    form = _FORMATS.get(str(tensor.dtype))
    if form is None or len(tensor.shape) != 2 or str(tensor.device) != "cpu":
        return []
    height, width = tensor.shape
    row_bytes = width * tensor.element_size()
    height = min(height, _BYTES // max(1, row_bytes))
    values = content(tensor, height * row_bytes)
    if values is None:
        return []
    table: Any = memoryview(values).cast("B")
    return table.cast(form, (height, width)).tolist()


def _by_mask(rows):
    if not rows or not all(value in (0, 1) for row in rows for value in row):
        return None
    used = [[place for place, value in enumerate(row) if value] for row in rows]
    used = [places for places in used if places] or [[0]]
    widest = max(places[-1] for places in used) - min(places[0] for places in used) + 1
    return Counted(len(rows) * len(rows[0]), sum(map(len, used)), len(rows) * widest)


def _by_filling(rows):
    if len(rows) < _LEAST_ROWS or len(rows[0]) < _LEAST_WIDTH:
        return None
    places = len(rows) * len(rows[0])
    backwards = [row[::-1] for row in rows]
    return _filled_at_end(rows) or _filled_at_end(backwards) or Counted(places, places, places)


def _filled_at_end(rows):
    """Half of the rows or more end with one value, some twice, and it is nowhere before that."""
    (filling, count), *_ = Counter(row[-1] for row in rows).most_common(1)
    lengths = [_length(row, filling) for row in rows]
    if 2 * count < len(rows) or min(lengths) >= len(rows[0]) - 1 or not all(lengths):
        return None
    if any(filling in row[:length] for row, length in zip(rows, lengths)):
        return None
    places = len(rows) * len(rows[0])
    return Counted(places, sum(lengths), len(rows) * max(lengths), filling)


def _length(row, filling):
    """Without the filling at its end."""
    length = len(row)
    while length and row[length - 1] == filling:
        length -= 1
    return length
