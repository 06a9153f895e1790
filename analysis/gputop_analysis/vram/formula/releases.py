"""Releases of libraries by their version, where habits changed with one."""

from __future__ import annotations

import re

RECENT = (9, 0)


def release(version: str) -> tuple[int, ...]:
    """Major and minor number of a version of Transformers; a recent one where none is known."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else RECENT
