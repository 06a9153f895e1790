"""A glance at the end of a file of steps, without NumPy: its last rows, and whether one can be
true.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from gputop_agent import wire
from gputop_agent.contracts.kinds import EARLIEST_NS, LATEST_NS
from gputop_probes.record.files import open_regular

LONGEST_NS = 400 * 86_400 * 10**9
"""No step or phase is longer."""


def last_rows(file: Path, at_most: int) -> list[dict[str, Any]]:
    """The last rows of a rank's steps by column, sound or not.

    Raises:
        OSError: the file cannot be read.
    """
    with os.fdopen(open_regular(file), "rb") as stream:
        count = stream.seek(0, os.SEEK_END) // wire.STEP.size
        first = max(0, count - at_most)
        stream.seek(first * wire.STEP.size)
        data = stream.read((count - first) * wire.STEP.size)
    names = [name for name, _ in wire.STEP_FIELDS]
    return [dict(zip(names, values, strict=True)) for values in wire.STEP.iter_unpack(data)]


def row_is_sound(values: dict[str, Any]) -> bool:
    """Whether a step's phases are times that add up to its wall, its counts and end possible."""
    parts = [values[f"{name}_ns"] for name in wire.PHASES]
    if any(not 0 <= part <= LONGEST_NS for part in parts) or sum(parts) != values["wall_ns"]:
        return False
    return (
        values["step"] + 1 >= values["n_steps"] >= 1
        and EARLIEST_NS <= values["t_end_ns"] <= LATEST_NS
    )
