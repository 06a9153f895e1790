"""Whether one step row can be true: for a glance at the end of a file, without NumPy."""

from __future__ import annotations

from typing import Any

from gputop_agent import wire
from gputop_agent.contracts.kinds import EARLIEST_NS, LATEST_NS

LONGEST_NS = 400 * 86_400 * 10**9
"""No step or phase is longer."""


def row_is_sound(values: dict[str, Any]) -> bool:
    """Whether a step's phases are times that add up to its wall, its counts and end possible."""
    parts = [values[f"{name}_ns"] for name in wire.PHASES]
    if any(not 0 <= part <= LONGEST_NS for part in parts) or sum(parts) != values["wall_ns"]:
        return False
    return (
        values["step"] + 1 >= values["n_steps"] >= 1
        and EARLIEST_NS <= values["t_end_ns"] <= LATEST_NS
    )
