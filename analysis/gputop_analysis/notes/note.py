"""One finding's small print."""

from __future__ import annotations

from typing import NamedTuple

CPU = "a real training on a CPU with the fault injected"
RECORDS = "built records only: never yet on a machine that has it"
PAIR = "two real trainings on a CPU, compared"


class Note(NamedTuple):
    """What a reader wants to know before believing a finding."""

    reads: str
    """Signals and columns of the record that it is judged by."""
    silent: str
    """When it abstains although the trigger might hold."""
    traps: str
    """What looks the same and is none."""
    seen_on: str = RECORDS
    """Where the check was tried: ``CPU``, ``PAIR`` or ``RECORDS``."""
