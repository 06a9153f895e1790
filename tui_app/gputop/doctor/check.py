"""One line of the doctor's report."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

OTHER_PYTHON = "activate the environment that trains, or name its interpreter with --python"
"""What helps where the interpreter has no torch."""


@dataclass(frozen=True)
class Check:
    """Result of one check: its subject, how it stands, and what to do about it."""

    name: str
    status: Literal["ok", "note", "warn", "fail"]
    detail: str
    fix: str = ""

    def as_dict(self) -> dict[str, str]:
        """Build the object for ``--json``."""
        return asdict(self)
