"""Collectives that the script itself calls and waits for. What DDP does inside a backward is DDP's
to tell.
"""

import sys

from gputop_agent.runtime import finder, guard
from gputop_agent.runtime.session import COMM
from gputop_agent.timing import clock

NAMES = (
    "all_reduce",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "broadcast",
    "broadcast_object_list",
    "scatter",
    "gather",
    "gather_object",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "monitored_barrier",
    "send",
    "recv",
)


def install(torch):
    """Wrap them in the module and in the package that re-exports them."""
    finder.after_import("torch.distributed.distributed_c10d", _wrap)


def _wrap(module):
    package = sys.modules.get("torch.distributed")
    for name in NAMES:
        original = getattr(module, name, None)
        if original is None:
            continue
        wrapper = guard.around(original, before, after)
        guard.patch(module, name, wrapper)
        if getattr(package, name, None) is original:
            guard.patch(package, name, wrapper)


def before(args, kwargs):
    """Begin the phase; an asynchronous call costs its launch only and is left alone."""
    if kwargs.get("async_op"):
        return None
    depth = len(clock.stack)
    clock.enter(COMM)
    return depth


def after(token, args, result):
    """End the phase."""
    clock.unwind(token)
