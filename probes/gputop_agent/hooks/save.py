"""Checkpoints: ``torch.save``, ``torch.distributed.checkpoint``, safetensors, and Lightning's own,
which is written to memory and then to its file.
"""

import os
import sys

from gputop_agent import wire
from gputop_agent.runtime import finder, frames, guard, transport
from gputop_agent.runtime.session import CHECKPOINT, session
from gputop_agent.timing import clock
from gputop_agent.timing.step_state import open_step

MIN_EVENT_NS = 1_000_000
_SENDERS = "torch.distributed.optim."


def install(torch):
    """Wrap what there is now, and the rest when it is imported."""
    wrapper = _timed(torch.save, "torch.save", path_at=1)
    guard.patch(sys.modules["torch.serialization"], "save", wrapper)
    guard.patch(torch, "save", wrapper)
    finder.after_import("torch.distributed.checkpoint.state_dict_saver", _wrap_distributed)
    finder.after_import("safetensors.torch", _wrap_safetensors)
    for package in ("lightning.fabric", "lightning_fabric"):
        finder.after_import(package + ".utilities.cloud_io", _wrap_lightning)


def _wrap_distributed(module):
    for name in ("save", "async_save"):
        if hasattr(module, name):
            original = getattr(module, name)
            wrapper = _timed(original, "dcp." + name, path_at=None)
            guard.patch(module, name, wrapper)
            package = sys.modules.get("torch.distributed.checkpoint")
            if getattr(package, name, None) is original:
                guard.patch(package, name, wrapper)


def _wrap_safetensors(module):
    for name in ("save_file", "save_model"):
        guard.patch(module, name, _timed(getattr(module, name), "safetensors", path_at=1))


def _wrap_lightning(module):
    if hasattr(module, "_atomic_save"):
        guard.patch(module, "_atomic_save", _timed(module._atomic_save, "lightning", path_at=1))


def _timed(original, via, path_at):
    def after(token, args, result):
        depth, began_ns, outermost = token
        clock.unwind(depth)
        if outermost:
            _report(began_ns, via, _path(args, path_at))

    return guard.around(original, before, after, always=True)


def before(args, kwargs):
    """Begin the phase; None for what torch's optimizers over ranks write to send it."""
    if sys._getframe(2).f_globals.get("__name__", "").startswith(_SENDERS):
        return None
    depth, outermost = len(clock.stack), session.phase != CHECKPOINT
    open_step.flags |= wire.F_CHECKPOINT
    return depth, clock.enter(CHECKPOINT), outermost


def _report(began_ns, via, path):
    duration_ns = session.last_ns - began_ns
    if duration_ns < MIN_EVENT_NS:
        return
    size = os.path.getsize(path) if path and os.path.isfile(path) else None
    transport.send_event(
        "checkpoint",
        step=session.step,
        duration_ms=round(duration_ns / 1e6, 3),
        path=path,
        bytes=size,
        via=via,
        site=frames.own_site(),
    )


def _path(args, path_at):
    if path_at is not None and len(args) > path_at:
        target = args[path_at]
    else:
        target = None
    if isinstance(target, (str, os.PathLike)):
        return os.fspath(target)
    return None
