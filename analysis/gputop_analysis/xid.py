"""The driver's XID error numbers and what to do, after NVIDIA's "XID Errors"."""

from __future__ import annotations

from typing import Literal, NamedTuple

Action = Literal[
    "restart the job",
    "reset the GPU",
    "reboot the node",
    "replace the GPU",
    "look at the application",
]


class Xid(NamedTuple):
    """One line of the table."""

    meaning: str
    action: Action
    hardware: bool
    """Whether it points at the hardware rather than at the program."""


_APP: Action = "look at the application"
_RESTART: Action = "restart the job"
_RESET: Action = "reset the GPU"
_REBOOT: Action = "reboot the node"
_REPLACE: Action = "replace the GPU"

TABLE: dict[int, Xid] = {
    8: Xid("GPU stopped processing", _RESET, True),
    13: Xid("graphics engine exception, often an access out of bounds in a kernel", _APP, False),
    31: Xid("GPU memory page fault: an illegal address, most often of the program", _APP, False),
    32: Xid("invalid or corrupted push buffer stream", _RESTART, True),
    38: Xid("driver firmware error", _RESET, True),
    43: Xid(
        "GPU stopped processing: the program's channel was reset after an error", _RESTART, False
    ),
    44: Xid("graphics engine fault during context switch", _RESTART, True),
    45: Xid(
        "preemptive cleanup, after another error or because the program ended", _RESTART, False
    ),
    46: Xid("GPU stopped processing", _RESET, True),
    48: Xid("double-bit ECC error: data in GPU memory was lost", _RESET, True),
    54: Xid("auxiliary power is not connected", _REPLACE, True),
    56: Xid("display engine error", _RESET, True),
    61: Xid("internal micro-controller breakpoint", _RESET, True),
    62: Xid("internal micro-controller halt", _RESET, True),
    63: Xid(
        "ECC page retirement or row remapping was recorded: takes effect at the next reset",
        _RESET,
        True,
    ),
    64: Xid("ECC page retirement or row remapping could not be recorded", _REPLACE, True),
    68: Xid("video processor exception", _RESTART, True),
    69: Xid("graphics engine class error", _APP, False),
    74: Xid("NVLink error", _RESET, True),
    79: Xid("GPU has fallen off the bus", _REBOOT, True),
    92: Xid("high rate of corrected single-bit ECC errors", _RESET, True),
    94: Xid("contained ECC error: only the program that used that memory is lost", _RESTART, True),
    95: Xid("uncontained ECC error: all programs on the GPU are lost", _RESET, True),
    109: Xid("context switch timeout", _RESET, True),
    110: Xid("security fault", _REBOOT, True),
    119: Xid("timeout of a call to the GPU system processor (GSP)", _RESET, True),
    120: Xid("error of the GPU system processor (GSP)", _RESET, True),
    121: Xid("C2C link error, corrected", _RESET, True),
    140: Xid("unrecovered ECC error", _RESET, True),
    137: Xid("NVLink privilege error: an access that is not allowed", _RESTART, False),
    143: Xid("GPU initialisation error", _RESET, True),
    **{code: Xid("NVLink error", _RESET, True) for code in range(144, 151)},
    154: Xid("the driver asks for a recovery action (see nvidia-smi -q)", _RESET, True),
}


def decode(code: int) -> Xid:
    """The line of a code; a general one for codes that are not in the table."""
    return TABLE.get(code, Xid("not in the table; see NVIDIA's XID documentation", _RESET, True))
