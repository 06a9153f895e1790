"""What traces the training thread, and makes each of its lines, calls or allocations slower."""

import sys
from typing import Any

from gputop_agent.runtime.session import session


def describe():
    """What traces the calling thread, which is the training's: ``{"trace", "profile", "dev_mode",
    "tracemalloc"}``.

    ``trace`` is a debugger or a coverage tool, ``profile`` cProfile or its like, each by the module
    that it is from.
    """
    tracers: "dict[str, Any]" = {
        "trace": _module_of(sys.gettrace()),
        "profile": _module_of(sys.getprofile()),
    }
    monitoring = getattr(sys, "monitoring", None)  # from Python 3.12 on
    if monitoring is not None:
        for key, ids in (("trace", (0, 1)), ("profile", (2,))):
            names = [name for name in map(monitoring.get_tool, ids) if name]
            tracers[key] = tracers[key] or (names[0] if names else None)
    tracers["dev_mode"] = bool(sys.flags.dev_mode)
    tracers["tracemalloc"] = is_tracing_memory()
    return tracers


def is_tracing_memory():
    """Whether tracemalloc follows the allocations of the process."""
    tracemalloc = sys.modules.get("tracemalloc")
    return bool(tracemalloc is not None and tracemalloc.is_tracing())


def look_again():
    """Note what traces the training thread by now: what was on at the first step may be off."""
    session.debug.update(describe())


def _module_of(function):
    if function is None:
        return None
    return str(getattr(function, "__module__", None) or type(function).__module__)
