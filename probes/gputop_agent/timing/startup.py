"""Milestones of a process on its way to the first backward: told as they happen.

Nothing of ours stays open: each message takes a socket that is closed at once. A process says its
first word with something that trainings do (a parameter, a process group, a device, a batch), so
launchers and tokenizers stay silent; forked children and DataLoader workers do, too.
"""

import os
import sys
import time
from time import monotonic_ns
from typing import Any

from gputop_agent.runtime import descriptors, frames, guard, interrupts, transport
from gputop_agent.runtime.session import NOT_ACTIVE, session

MAX_MESSAGES = 64  # of a process
APART_NS = 1_000_000_000  # parameters of two statements that come within this are one model
LOOK_NS = 50_000_000  # between two looks at which statement it is
MODEL, FIRST_UPDATE = "model", "first update"
CALLS = ("__init__", "__call__")  # functions that are no statement of their own


class _Start:
    """What this process has reached."""

    def __init__(self, over=False):
        self.over = over
        self.messages = 0
        self.python: Any = None  # (began_ns, ended_ns), monotonic
        self.torch: Any = None
        self.depth: Any = {}  # name -> calls of it that are under way
        self.batch_ns = 0  # when the first batch was asked for
        # -- the model: from its first parameter to its last
        self.model_ns = 0
        self.parameter_ns = 0
        self.parameter_told_ns = 0
        self.statement: Any = None
        self.looked_ns = 0
        self.site: Any = None
        self.take_out: Any = []  # callables that take our hooks out


_start = _Start()


@session.after_fork
def reset():
    """A forked child has not begun with an interpreter of its own, and says nothing."""
    take_out, _start.take_out = _start.take_out, []
    _start.__init__(over=True)
    _start.take_out = take_out


def imported(finder):
    """``import torch`` is over; ``finder`` knows when it began."""
    began_ns = getattr(finder, "began", {}).get("torch")
    if began_ns:
        _start.torch = began_ns, monotonic_ns()
        _start.python = began_ns - _age_ns(began_ns), finder.awake_ns


def until_training(take_out):
    """Call ``take_out()`` once the process trains."""
    _start.take_out.append(take_out)


def is_over():
    """Whether the process trains, or is none that is asked."""
    return _start.over or session.thread_ident != NOT_ACTIVE


def begins(name, began_ns):
    """Something that may take long begins. Returns whether it is the outermost call of its name."""
    if is_over():
        return False
    depth = _start.depth[name] = _start.depth.get(name, 0) + 1
    if depth == 1:
        _tell(name, began_ns, None)
    return depth == 1


def ends(name, began_ns, outermost):
    """The same call is over."""
    _start.depth[name] = max(0, _start.depth.get(name, 0) - 1)
    if outermost and not is_over():
        _tell(name, began_ns, monotonic_ns())


def batch_asked(began_ns):
    """The first iterator is made, or the first batch is fetched."""
    if not _start.batch_ns and not is_over():
        _start.batch_ns = began_ns
        _tell("first batch", began_ns, None)


def batch_came(began_ns):
    """A batch was fetched before the process trains."""
    if _start.batch_ns >= 0 and not is_over():
        batch_asked(began_ns)
        _tell("first batch", _start.batch_ns, monotonic_ns())
        _start.batch_ns = -1


def parameter_made(module, name, parameter):
    """Called by torch for each parameter that a module gets."""
    try:
        if not is_over():
            _note_parameter(monotonic_ns())
    except Exception:
        guard.failed("parameter")


guard.hide(parameter_made)


def _note_parameter(now_ns):
    if now_ns - _start.looked_ns >= LOOK_NS:
        statement = _statement(sys._getframe(2))
        is_new = statement != _start.statement and now_ns - _start.parameter_ns > APART_NS
        _start.statement, _start.looked_ns = statement, now_ns
        if is_new:
            _tell_model()
            _start.model_ns, _start.site = now_ns, frames.own_site()
            _tell(MODEL, now_ns, None)
    _start.parameter_ns = now_ns


def _statement(frame):
    """The user's statement that builds the module, as ``(code, instruction)``."""
    while frame is not None:
        code = frame.f_code
        if code.co_name not in CALLS and frames.origin(code.co_filename) == frames.USER:
            return code, frame.f_lasti
        frame = frame.f_back
    return None


def optimizer_made():
    """The model that it is to train is built: what follows may take long and is something else."""
    if not is_over():
        _tell_model()


def first_update_goes_on(began_ns):
    """The first update asks its closure again and again, as LBFGS does: it may be all of the
    training, in which nobody should wait for a step.
    """
    _tell(FIRST_UPDATE, began_ns, None)


def _tell_model():
    """Say how far the model has come, unless that was said."""
    if _start.parameter_ns != _start.parameter_told_ns:
        _start.parameter_told_ns = _start.parameter_ns
        _say([_event(MODEL, _start.model_ns, _start.parameter_ns, _start.site)])


def first_backward(fetched_ns, now_ns):
    """The process trains from now on; its first forward began when a batch had come."""
    if not _start.over:
        if fetched_ns:
            _tell("first forward", fetched_ns, now_ns)
        _tell_model()
        _start.over = True
    hooks, _start.take_out = _start.take_out, []
    for take_out in hooks:
        guard.safely(take_out)


def _tell(name, began_ns, ended_ns):
    """Say that a milestone has begun or is reached; the model's parameters so far before it."""
    if _in_worker():
        _start.over = True
        return
    if name != MODEL:
        _tell_model()
    events = []
    if not _start.messages:
        for early, span in (("python", _start.python), ("import torch", _start.torch)):
            if span is not None:
                events.append(_event(early, span[0], span[1], None))
    site = frames.own_site() if ended_ns is None else None
    events.append(_event(name, began_ns, ended_ns, site))
    _say(events)


def _say(events):
    if _start.messages < MAX_MESSAGES:
        _start.messages += 1
        transport.send_apart(events)


def _event(name, began_ns, ended_ns, site):
    rank = os.environ.get("RANK", "")
    return {
        "type": "startup",
        "t_ns": transport.unix_ns(monotonic_ns()),
        "name": name,
        "began_ns": transport.unix_ns(began_ns),
        "ended_ns": transport.unix_ns(ended_ns) if ended_ns else None,
        "site": site,
        "rank": int(rank) if rank.isdigit() else None,
    }


def _in_worker():
    """Whether this is a DataLoader's worker process."""
    worker = sys.modules.get("torch.utils.data._utils.worker")
    return getattr(worker, "_worker_info", None) is not None


def _age_ns(now_ns):
    """Nanoseconds from the process's start (``/proc``, to 10 ms) to a monotonic moment."""
    try:
        fields = descriptors.stat_fields("/proc/self/stat")
        started_ns = int(fields[19]) * 10**9 // os.sysconf("SC_CLK_TCK")
        since_ns = monotonic_ns() - now_ns
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) - started_ns - since_ns
    except (OSError, ValueError, IndexError, AttributeError):
        interrupts.pass_on()
        return 0
