"""Optimizer steps, through torch's own global step hooks."""

import sys
from _thread import get_ident
from numbers import Real
from time import monotonic_ns

from gputop_agent import wire
from gputop_agent.hooks import closures
from gputop_agent.runtime import frames, guard, modes, transport
from gputop_agent.runtime.bound import bound
from gputop_agent.runtime.sentinel import sentinel
from gputop_agent.runtime.session import H2D, OPTIMIZER, OTHER, session
from gputop_agent.timing import activation, clock, device, events, roots, sampling, steps
from gputop_agent.timing.clock import MICRO_BATCHES, OPTIMIZER_STEPS, totals
from gputop_agent.timing.step_state import open_step
from gputop_agent.timing.steps import fold
from gputop_agent.watchers.layers import layers
from gputop_agent.watchers.looks import built_places, checkup, rate_steps
from gputop_agent.watchers.nan import numerics

MAX_BEGINNINGS = 16  # of optimizers that come after others


def install(torch):
    """Register the hooks; they see every subclass of ``torch.optim.Optimizer``."""
    module = sys.modules["torch.optim.optimizer"]
    built_places.install(module, sys.modules["torch.optim.lr_scheduler"])
    rate_steps.install(sys.modules["torch.optim.lr_scheduler"])
    for register, hook in (
        (module.register_optimizer_step_pre_hook, before_step),
        (module.register_optimizer_step_post_hook, after_step),
    ):
        session.undo.append(register(hook).remove)


def before_step(optimizer, args, kwargs):
    """Begin the phase."""
    try:
        try:
            if bound.is_compiling():  # first: dynamo traces into hooks
                return None
            if not session.hooks_out and (
                get_ident() == session.thread_ident or activation.adopt(by_backward=False)
            ):
                began = monotonic_ns()
                _begin(optimizer)
                changed = closures.timed(args, kwargs)
                session.hook_ns += monotonic_ns() - began
                return changed
        except Exception:
            guard.failed("optimizer pre hook")
        return None
    except BaseException as error:
        guard.vanish(error, "step")
        raise


def after_step(optimizer, args, kwargs):
    """End the phase; the step is over at the next event."""
    try:
        try:
            if bound.is_compiling():
                return None
            if get_ident() == session.thread_ident:
                if session.hooks_out:
                    sampling.count(optimizer)
                else:
                    began = monotonic_ns()
                    _end(optimizer)
                    session.hook_ns += monotonic_ns() - began
        except Exception:
            guard.failed("optimizer post hook")
        return None
    except BaseException as error:
        guard.vanish(error, "step")
        raise


def _begin(optimizer):
    if not open_step.in_optimizer:
        if not open_step.in_backward:
            if session.phase == H2D:
                clock.switch(OTHER)
            events.optimizer_begins(id(optimizer))
        if id(optimizer) not in session.optimizers or not roots.search.passes:
            if roots.new_optimizer(optimizer):
                steps.book_agent_time(roots.discover)
        if open_step.check_stage:
            checkup.before_update(optimizer)
        if layers.watch.look is not None:
            steps.book_agent_time(layers.watch.look.update_begins)
        if numerics.watch.is_armed:
            numerics.before_update(optimizer)
        open_step.optimizer_depth = len(clock.stack)
        update_begins()
    open_step.in_optimizer += 1
    clock.enter(OPTIMIZER)


def update_begins():
    """What prepares the update, or the update itself, begins."""
    if session.cuda and not open_step.in_backward:
        device.timer.mark("optimizer_begin")


def _end(optimizer):
    if open_step.in_optimizer > 1:
        open_step.in_optimizer -= 1
        session.nested_update_seen = True
        clock.leave()
        return
    if open_step.in_optimizer:
        clock.unwind(open_step.optimizer_depth)
    elif not sampling.is_resuming():  # then the hooks came in while the optimizer stepped
        return
    open_step.in_optimizer = 0
    if open_step.check_stage:
        checkup.after_update(optimizer)
    if numerics.watch.is_armed:
        numerics.after_update()
    key = id(optimizer)
    open_step.stepped.add(key)
    events.known_optimizers[key] = session.step
    if sentinel.unseen != 1 or sentinel.overdue or sentinel.longest < 1 or not sentinel.events:
        sentinel.optimizer_stepped()
    else:
        sentinel.unseen = 0
    totals[OPTIMIZER_STEPS] += 1
    if open_step.grads and not open_step.backwards:
        totals[MICRO_BATCHES] += 1
        open_step.grads = 0
    if key not in events.begun_optimizers:
        _first_update(optimizer)
    n_values = events.optimizer_values.get(key, 0)
    if n_values >= fold.lr_values:
        fold.lr_values = n_values
        _note_lr(optimizer.param_groups)
    if open_step.in_backward:
        open_step.flags |= wire.F_OPT_IN_BACKWARD
        return
    step_seen()
    sampling.update_ended(key)


def _first_update(optimizer):
    """Tell of one that comes after others, as with the network of another fold."""
    if 0 < session.beginnings <= MAX_BEGINNINGS:
        name = type(optimizer).__name__
        transport.send_event("optimizer_begins", step=session.step, optimizer=name)
    session.beginnings += 1
    events.begun_optimizers.add(id(optimizer))


def step_seen():
    """An update was made or skipped: the next event closes the step."""
    if not open_step.pending:
        open_step.pending, open_step.cut = True, None
    if session.cuda:
        device.timer.mark("optimizer_end")


def _note_lr(groups):
    lr = groups[0].get("lr")
    if lr == 0.0 and len(groups) > 1:
        # a group that rests says nothing of the others
        rates = [group.get("lr") for group in groups]
        lr = max((rate for rate in rates if isinstance(rate, float)), default=None)
    if type(lr) is float:
        fold.lr = lr
    elif lr is not None:
        _note_unusual_lr(lr)


@modes.unseen
def _note_unusual_lr(lr):
    if isinstance(lr, Real):  # NumPy's scalars, too, as a schedule by ``np.cos`` makes them
        fold.lr = float(lr)
    elif type(lr) is session.torch.Tensor and lr.is_cpu and lr.numel() == 1:
        fold.lr = float(lr)


def heal():
    """Leave an optimizer without a frame on the stack: a step that raises has no post hook."""
    frame = sys._getframe(1)
    while frame is not None:
        if frames.is_optimizer_step(frame):
            return
        frame = frame.f_back
    open_step.in_optimizer = 0
    clock.unwind(open_step.optimizer_depth)
