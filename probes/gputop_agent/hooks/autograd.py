"""Backward: ``torch.autograd.backward`` (in ``Tensor.backward``) and ``torch.autograd.grad``."""

import sys
from time import monotonic_ns, thread_time_ns

from gputop_agent import wire
from gputop_agent.runtime import guard, modes
from gputop_agent.runtime.bound import bound
from gputop_agent.runtime.sentinel import sentinel
from gputop_agent.runtime.session import BACKWARD, FORWARD, H2D, OTHER, session
from gputop_agent.timing import activation, batch, clock, device, events, replicas, roots, steps
from gputop_agent.timing.clock import COMPUTE_CPU_NS, MICRO_BATCHES, SAMPLES, TOKENS, totals
from gputop_agent.timing.loss_scale import loss_scale
from gputop_agent.timing.step_state import NO_GAP, open_step
from gputop_agent.timing.steps import fold
from gputop_agent.watchers.layers import layers
from gputop_agent.watchers.looks import checkup
from gputop_agent.watchers.nan import numerics

from . import optimizer


def install(torch):
    """Wrap both functions where everybody looks them up."""
    autograd = torch.autograd
    backward = guard.around(autograd.backward, before_backward, after_backward, activation.adopt)
    guard.patch(autograd, "backward", backward, steady=False)
    grad = guard.around(autograd.grad, before_grad, after_grad, activation.before_training)
    guard.patch(autograd, "grad", grad, steady=False)


def before_backward(args, kwargs):
    """Begin the phase; a backward inside another one (re-entrant checkpointing) is part of that."""
    if layers.watch.look is not None and args:
        layers.hook_nodes(args[0])
    if open_step.in_backward:
        return None
    if open_step.in_optimizer:
        optimizer.heal()
    if (len(args) > 3 and args[3]) or kwargs.get("create_graph"):
        session.create_graph_seen = session.graph_by_backward_seen = True
    depth = len(clock.stack)
    if open_step.gap_phase != NO_GAP:
        _book_loss()
    if not open_step.in_forward:
        _begin_outermost()
    if open_step.check_stage:
        checkup.before_backward(args, kwargs)
    sentinel.unseen += 1
    open_step.backwards += 1
    if session.ddp:
        replicas.backward_begins()
    totals[MICRO_BATCHES] += 1
    if open_step.inputs is not None:
        _count_inputs()
    if args and not open_step.loss_is_known:
        take_loss(args[0])
    if numerics.watch.is_in and args:
        guard.safely(numerics.before_backward, args[0])
    open_step.in_backward = True
    if session.cuda:
        device.timer.mark("backward_begin")
    cpu_ns = fold.probe()
    clock.enter(BACKWARD)
    if layers.watch.look is not None:
        guard.safely(layers.watch.look.backward_begins)
    return depth, cpu_ns


def _count_inputs():
    """Without a DataLoader a micro-batch is what the last forward before a backward was given.

    Forwards whose graph no backward uses (a policy that acts) count nothing. Of several optimizers
    each may have backwards of the same batch, so then only those count that begin at the line of
    the step's first one.
    """
    (args, kwargs), open_step.inputs = open_step.inputs, None
    if len(events.known_optimizers) > 1:
        location = events.place()
        open_step.counted_at = open_step.counted_at or location
        if open_step.counted_at != location:
            return
    samples, tokens = batch.count_inputs(args, kwargs)
    totals[SAMPLES] += samples
    totals[TOKENS] += tokens


def after_backward(token, args, result):
    """End the phase."""
    depth, cpu_ns = token
    if layers.watch.look is not None:
        guard.safely(layers.watch.look.backward_ended)
    clock.unwind(depth)
    open_step.in_backward = False
    if cpu_ns:
        totals[COMPUTE_CPU_NS] += thread_time_ns() - cpu_ns
    if session.cuda:
        device.timer.mark("backward_end")
    if numerics.watch.is_in and args:
        numerics.after_backward(args[0])
    if open_step.check_stage:
        checkup.after_backward()
    _look_after(args)


def _look_after(args):
    if open_step.flags & wire.F_OPT_IN_BACKWARD:
        open_step.pending = True
    open_step.loss_is_known = False
    if not roots.search.passes:
        steps.book_agent_time(roots.discover)
    elif not open_step.model_forwards:
        steps.book_agent_time(roots.look_again)
    if sentinel.reference is None and not sentinel.events and args:
        roots.watch_leaf(args[0])
    if not sentinel.events or sentinel.overdue:
        sentinel.backward_ended()


def _of_torch_func():
    """Whether torch.func asks for the gradients: it always makes their graph, and lets it go."""
    frame = sys._getframe(3)  # of whoever calls autograd.grad
    return frame.f_globals.get("__name__") == "torch._functorch.eager_transforms"


def before_grad(args, kwargs):
    """``autograd.grad`` counts as backward; before training begins it only leaves a trace."""
    if not session.thread_ident and not activation.trains_by_hand(_parameter(args, kwargs)):
        return monotonic_ns()
    if open_step.in_backward:
        return None
    if not session.inner_gradients_seen and not _keeps_graph(kwargs):
        session.inner_gradients_seen = _of_weights(args, kwargs)
    if kwargs.get("create_graph") and not _of_torch_func():
        session.create_graph_seen = True
        if open_step.grads > open_step.backwards:
            session.derivatives_seen = True
        if not session.meta_gradients_seen:
            session.meta_gradients_seen = _of_weights(args, kwargs)
    depth = len(clock.stack)
    if open_step.gap_phase != NO_GAP:
        _book_loss()
    if not open_step.in_forward and not open_step.in_optimizer:
        _begin_outermost()
        open_step.grads += 1
        if sentinel.by_grads:
            sentinel.unseen += 1
            open_step.backwards += 1
            totals[MICRO_BATCHES] += 1
    open_step.in_backward = True
    if session.cuda:
        device.timer.mark("backward_begin")
    clock.enter(BACKWARD)
    return depth


def after_grad(token, args, result):
    """End the phase."""
    if not session.thread_ident:
        return activation.grad_ended(token)
    clock.unwind(token)
    open_step.in_backward = False
    if sentinel.by_grads:
        if args:
            note_loss(args[0])
        _look_after(args)


def _parameter(args, kwargs):
    """The first parameter asked for gradients; None without any, or if looking uses them up."""
    values = _inputs(args, kwargs)
    return next((value for value in values if isinstance(value, session.torch.nn.Parameter)), None)


def _keeps_graph(kwargs):
    return bool(kwargs.get("create_graph") or kwargs.get("retain_graph"))


def _of_weights(args, kwargs):
    """Whether gradients of a model's weights are asked for, or of copies of them (``higher``): a
    gradient penalty asks for those of one or two inputs.
    """
    return len(_inputs(args, kwargs)) > 2 or _parameter(args, kwargs) is not None


def _inputs(args, kwargs):
    """What gradients are asked of; empty if looking would use them up."""
    inputs = args[1] if len(args) > 1 else kwargs.get("inputs")
    if isinstance(inputs, (list, tuple)):
        return inputs
    return (inputs,)


def take_loss(loss):
    """Note a loss whose graph is still there."""
    if loss_scale.steps_left:
        guard.safely(loss_scale.look, loss)
    note_loss(loss)


@modes.unseen
def note_loss(loss):
    """Read a loss in the CPU's memory, or have the device's clock fetch it without waiting."""
    if type(loss) is not bound.tensor_type:
        if isinstance(loss, (tuple, list)) and loss:
            note_loss(loss[0])
    elif loss.numel() != 1:
        return
    elif loss.is_cpu:
        if not bound.count_dispatch_modes():
            # reading a value is an operation that a user's mode would see
            value = loss.item()
            open_step.loss_sum += value
            open_step.loss_count += 1
            if value - value != 0 or numerics.watch.is_armed:
                numerics.loss_read(loss, value)
    elif session.cuda and loss.is_cuda:
        device.timer.late_scalar("loss", loss)


def _begin_outermost():
    if open_step.unsure:
        open_step.belongs_to_training()
    if open_step.in_optimizer:  # in a closure
        return
    if session.phase == H2D:
        clock.switch(OTHER)
    events.compute_begins()


def _book_loss():
    """Book what ran between a forward's end and its backward as loss, if short enough."""
    clock.book()
    gap_ns = totals[open_step.gap_phase] - open_step.gap_began
    if session.phase == open_step.gap_phase and gap_ns * clock.LOSS_SHARE <= open_step.forward_ns:
        clock.move(gap_ns, open_step.gap_phase, FORWARD)
    open_step.gap_phase, open_step.forward_ns = NO_GAP, 0
