"""What the training thread does at the moment, for whoever looks from another thread."""

import os

from gputop_agent.runtime import frames
from gputop_agent.runtime.session import (
    BACKWARD,
    DATA,
    FORWARD,
    OPTIMIZER,
    OTHER,
    UNMEASURED,
    session,
)

_LOADER_FILE = os.path.join("torch", "utils", "data", "dataloader.py")
_MODULE_FILE = os.path.join("torch", "nn", "modules", "module.py")


def phase(frame=None):
    """Index into ``wire.PHASES``; between windows by where the innermost ``frame`` stands."""
    phase = session.phase
    if phase != UNMEASURED:
        return phase
    for outer in frames.stack(frame):
        file, name = outer.f_code.co_filename, outer.f_code.co_name
        if name == "__next__" and file.endswith(_LOADER_FILE):
            return DATA
        if name == "_call_impl" and file.endswith(_MODULE_FILE):
            return FORWARD
        if name == "_engine_run_backward":
            return BACKWARD
        if frames.is_optimizer_step(outer):
            return OPTIMIZER
    return OTHER


def step():
    """Index of the step being timed."""
    return session.step + len(session.update_times)
