"""NumPy's elementwise functions on plain numbers: loading it takes longer than this."""

from __future__ import annotations

import math
from functools import reduce
from typing import Any

PLAIN = (int, float)
Number = Any
"""An int, a float or a NumPy array; all functions of this package are elementwise in it."""


def least(*values: Number) -> Number:
    """The smallest of the values."""
    if _plain(*values):
        return min(values)
    import numpy as np

    return reduce(np.minimum, values)


def most(*values: Number) -> Number:
    """The largest of the values."""
    if _plain(*values):
        return max(values)
    import numpy as np

    return reduce(np.maximum, values)


def up(value: Number) -> Number:
    """The next whole number."""
    if _plain(value):
        return float(math.ceil(value))
    import numpy as np

    return np.ceil(value)


def true(value: Number) -> Number:
    """1 where a comparison holds, else 0."""
    return int(value) if isinstance(value, bool) else value.astype("int64")


def choose(condition: Number, then: Number, other: Number) -> Number:
    """``then`` where the condition holds, else ``other``."""
    if isinstance(condition, bool):
        return then if condition else other
    import numpy as np

    return np.where(condition, then, other)


def _plain(*values: Number) -> bool:
    return all(isinstance(value, PLAIN) for value in values)
