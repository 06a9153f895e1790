"""What lowers a GPU's clock, as ``nvidia-smi`` tells it: a column a reason, a line a reason, or one
number with a bit a reason (NVML's ``nvmlClocksEventReasons``).
"""

from __future__ import annotations

from collections.abc import Sequence

_REASONS = {
    "heat": ("hw_thermal_slowdown", "sw_thermal_slowdown"),
    "power limit": ("sw_power_cap", "hw_power_brake_slowdown"),
}
_BITS = {"heat": 0x20 | 0x40, "power limit": 0x4 | 0x80}
_GROUPS = ("clocks_throttle_reasons.", "clocks_event_reasons.")
_STATES = {"Active": True, "Not Active": False}


def with_limits(
    header: Sequence[str], row: Sequence[str], columns: dict[str, int]
) -> tuple[dict[str, int], list[str]]:
    """(Columns, row) with a cell more for heat and one for the power limit, if the row has them."""
    reasons = {}
    for title, cell in zip(header, row, strict=False):
        if title.startswith(_GROUPS):
            reasons[title.partition(".")[2]] = cell.strip()
    places, cells = dict(columns), list(row)
    for name, state in limits(reasons).items():
        places[name] = len(cells)
        cells.append(state)
    return places, cells


def limits(told: dict[str, str]) -> dict[str, str]:
    """``1`` or ``0`` for heat and the power limit, by the state of each reason under the name that
    ``--query-gpu`` has for it; without those that no reason tells.
    """
    by_limit = {}
    for limit, reasons in _REASONS.items():
        states = [_STATES[told[reason]] for reason in reasons if told.get(reason) in _STATES]
        mask = _mask(told.get("active", ""))
        if mask is not None:
            states.append(bool(mask & _BITS[limit]))
        if states:
            by_limit[limit] = str(int(any(states)))
    return by_limit


def _mask(text: str) -> int | None:
    try:
        return int(text[:18], 16) if text.startswith("0x") else None
    except ValueError:
        return None
