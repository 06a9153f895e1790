"""The Linux call that Python has no name for; it says False where the kernel does not have it."""

from __future__ import annotations

import ctypes
import sys

_PR_SET_CHILD_SUBREAPER = 36


def set_subreaper() -> bool:
    """Become the parent of descendants whose own parent dies."""
    if sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    return libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
