"""GradScaler: a skipped update is a step all the same, and the loss is the one before scaling."""

import sys

from gputop_agent import wire
from gputop_agent.runtime import guard, late, modes
from gputop_agent.runtime.session import OPTIMIZER, session
from gputop_agent.timing import clock, sampling
from gputop_agent.timing.step_state import open_step
from gputop_agent.timing.steps import fold
from gputop_agent.watchers.nan import numerics

from . import autograd, optimizer


def install(torch):
    """Wrap ``scale``, ``unscale_`` and ``step`` of the class."""
    scaler = sys.modules["torch.amp.grad_scaler"].GradScaler
    guard.patch(scaler, "scale", guard.around(scaler.scale, before_scale, after_scale))
    unscale = guard.around(scaler.unscale_, before_update, after_unscale)
    guard.patch(scaler, "unscale_", unscale)
    guard.patch(scaler, "step", guard.around(scaler.step, before_step, after_step, always=True))


def before_scale(args, kwargs):
    """Read the loss that is about to be scaled."""
    if not _is_enabled(args):
        return
    session.scaler_seen = session.gradients_scaled = True
    outputs = args[1] if len(args) > 1 else kwargs.get("outputs")
    autograd.take_loss(outputs)
    open_step.loss_is_known = True


def after_scale(token, args, result):
    """``scale`` is part of the loss: nothing ends."""


def before_update(args, kwargs):
    """Begin the phase. None for a scaler switched off: it only calls the optimizer."""
    if not _is_enabled(args):
        return None
    depth = len(clock.stack)
    optimizer.update_begins()
    clock.enter(OPTIMIZER)
    return depth, clock.totals[clock.OPTIMIZER_STEPS]


def before_step(args, kwargs):
    """Begin the phase; between two windows only the updates are counted."""
    if session.hooks_out and _is_enabled(args):
        return None, clock.totals[clock.OPTIMIZER_STEPS] + sampling.unbooked_updates()
    return before_update(args, kwargs)


def after_unscale(token, args, result):
    """End the phase."""
    session.gradients_scaled = False
    clock.unwind(token[0])


@modes.unseen
def after_step(token, args, result):
    """End the phase; without an optimizer step in between, the scaler has skipped it."""
    depth, steps_before = token
    session.gradients_scaled = False
    if depth is not None:
        clock.unwind(depth)
    is_skipped = clock.totals[clock.OPTIMIZER_STEPS] + sampling.unbooked_updates() == steps_before
    if depth is None or session.hooks_out:
        if is_skipped and len(args) > 1:
            open_step.flags |= wire.F_SCALER_SKIP
            sampling.update_skipped(args[1])
        return
    numerics.update_decided(is_skipped)
    if is_skipped:
        open_step.flags |= wire.F_SCALER_SKIP
        if len(args) > 1:
            open_step.stepped.add(id(args[1]))
    scale = getattr(args[0], "_scale", None)
    if scale is not None and scale.is_cpu and late.may_look():
        fold.loss_scale = scale.item()
    optimizer.step_seen()


def _is_enabled(args):
    return bool(getattr(args[0], "_enabled", True)) if args else False
