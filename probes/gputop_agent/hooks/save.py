"""Checkpoints: ``torch.save``, ``torch.distributed.checkpoint`` and safetensors."""

import os
import sys

from .. import clock, finder, guard, transport, wire
from ..cycle import C
from ..state import CHECKPOINT, S

MIN_EVENT_NS = 1_000_000


def install(torch):
    """Wrap what there is now, and the rest when it is imported."""
    wrapper = _timed(torch.save, "torch.save", path_at=1)
    guard.patch(sys.modules["torch.serialization"], "save", wrapper)
    guard.patch(torch, "save", wrapper)
    finder.after_import("torch.distributed.checkpoint.state_dict_saver", _wrap_distributed)
    finder.after_import("safetensors.torch", _wrap_safetensors)


def _wrap_distributed(module):
    for name in ("save", "async_save"):
        if hasattr(module, name):
            wrapper = _timed(getattr(module, name), "dcp." + name, path_at=None)
            guard.patch(module, name, wrapper)
            package = sys.modules.get("torch.distributed.checkpoint")
            if getattr(package, name, None) is wrapper.__wrapped__:
                guard.patch(package, name, wrapper)


def _wrap_safetensors(module):
    for name in ("save_file", "save_model"):
        guard.patch(module, name, _timed(getattr(module, name), "safetensors", path_at=1))


def _timed(original, via, path_at):
    def after(token, args, result):
        clock.unwind(token[0])
        if token[0] == token[2]:
            _report(token[1], via, _path(args, path_at))

    return guard.around(original, before, after)


def before(args, kwargs):
    """Begin the phase."""
    depth = len(clock.stack)
    outermost = depth if S.phase != CHECKPOINT else -1
    C.flags |= wire.F_CHECKPOINT
    return depth, clock.enter(CHECKPOINT), outermost


def _report(began_ns, via, path):
    duration_ns = S.last_ns - began_ns
    if duration_ns < MIN_EVENT_NS:
        return
    size = os.path.getsize(path) if path and os.path.isfile(path) else None
    transport.send_event(
        "checkpoint", step=S.step, duration_ms=round(duration_ns / 1e6, 3), path=path, bytes=size, via=via
    )


def _path(args, path_at):
    target = args[path_at] if path_at is not None and len(args) > path_at else None
    return os.fspath(target) if isinstance(target, (str, os.PathLike)) else None
