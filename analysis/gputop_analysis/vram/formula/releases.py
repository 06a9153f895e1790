"""Releases of libraries by their version, where habits changed with one."""

from __future__ import annotations

import re

from gputop_analysis.vram.setup import TRANSFORMERS_CODE, Setup

ONE_TENSOR = (5, 0)
"""Transformers from which on the experts of a layer are one tensor and one grouped product."""
RECENT = (9, 0)
SDPA = (4, 36)
"""Transformers from which on SDPA is the default of what has it; attention was written out."""


def release(version: str) -> tuple[int, ...]:
    """Major and minor number of a version of Transformers; a recent one where none is known."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else RECENT


def single_experts(setup: Setup) -> bool:
    """Whether each expert is a module of its own, with linear layers that can be quantised:
    everywhere but in Transformers since 5.0.
    """
    return setup.recipe not in TRANSFORMERS_CODE or release(setup.transformers) < ONE_TENSOR
