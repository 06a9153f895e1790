"""Gradient clipping belongs to the update, and returns the gradient norm."""

import sys
from math import inf
from numbers import Real

from gputop_agent.runtime import frames, guard, late, modes
from gputop_agent.runtime.session import OPTIMIZER, session
from gputop_agent.timing import clock, device
from gputop_agent.timing.step_state import open_step
from gputop_agent.watchers.nan import numerics

from . import optimizer


def install(torch):
    """Wrap ``clip_grad_norm_`` and ``clip_grad_value_`` where scripts and trainers look them up."""
    module, package = sys.modules["torch.nn.utils.clip_grad"], sys.modules["torch.nn.utils"]
    for name, before, after in (
        ("clip_grad_norm_", before_norm, after_norm),
        ("clip_grad_value_", before_value, after_value),
    ):
        wrapper = guard.around(getattr(module, name), before, after)
        guard.patch(module, name, wrapper)
        guard.patch(package, name, wrapper)


def before_norm(args, kwargs):
    """Begin the phase; keep the limit if it is a plain number."""
    limit = args[1] if len(args) > 1 else kwargs.get("max_norm")
    if isinstance(limit, Real):
        session.clip_max_norm = float(limit)
    is_late = _is_late()
    if open_step.check_stage or (is_late and session.clip_site is None):
        session.clip_site = frames.caller_site()
    if limit != inf:  # which measures the norm and clips nothing
        session.clips += 1
        session.clips_scaled += session.gradients_scaled
        session.clips_late += is_late
    return before_value(args, kwargs)


def _is_late():
    """Whether the only optimizer has used the gradients: it has stepped, and no backward came
    since, although the next forward may have.
    """
    used = open_step.pending or not (open_step.backwards or open_step.grads or session.step == 0)
    return used and len(session.optimizers) == 1


def before_value(args, kwargs):
    """Begin the phase."""
    depth = len(clock.stack)
    optimizer.update_begins()
    clock.enter(OPTIMIZER)
    return depth


def after_value(token, args, result):
    """End the phase."""
    clock.unwind(token)


@modes.unseen
def after_norm(token, args, result):
    """End the phase; keep the norm if it can be read without waiting."""
    clock.unwind(token)
    if not late.may_look():
        return
    if type(result) is not session.torch.Tensor or result.numel() != 1:
        return
    if result.is_cpu:
        norm = open_step.grad_norm = result.detach().item()
        if norm - norm != 0:
            numerics.norm_is_bad()
    elif session.cuda and result.is_cuda:
        device.timer.late_scalar("grad_norm", result)
