"""Backward passes: ``torch.autograd.backward`` (under ``Tensor.backward``) and ``torch.autograd.grad``."""

from time import monotonic_ns, thread_time_ns
from typing import Any

from gputop_agent import activation, clock, device, events, guard, roots, steps, wire
from gputop_agent.clock import COMPUTE_CPU_NS, MICRO_BATCHES, totals
from gputop_agent.cycle import C
from gputop_agent.sentinel import sentinel
from gputop_agent.state import BACKWARD, FORWARD, H2D, OTHER, S
from gputop_agent.steps import F

from . import optimizer

dispatch_modes: Any = None
LOSS_SHARE = 4  # a loss computed outside the model takes at most a quarter of its forward


def install(torch):
    """Wrap both functions where everybody looks them up."""
    global dispatch_modes
    dispatch_modes = torch._C._len_torch_dispatch_stack
    autograd = torch.autograd
    guard.patch(
        autograd, "backward", guard.around(autograd.backward, before_backward, after_backward, activation.adopt)
    )
    guard.patch(autograd, "grad", guard.around(autograd.grad, before_grad, after_grad, activation.before_training))


def before_backward(args, kwargs):
    """Begin the phase; a backward inside another one (re-entrant checkpointing) is part of that."""
    if C.in_backward:
        return None
    if C.in_optimizer:
        optimizer.heal()
    depth = len(clock.stack)
    if C.gap_phase >= 0:
        _book_loss()
    if not C.in_forward and not C.in_optimizer:
        _begin_outermost()
    sentinel.unseen += 1
    C.backwards += 1
    totals[MICRO_BATCHES] += 1
    C.in_backward = True
    cpu_ns = thread_time_ns() if F.probing else 0
    clock.enter(BACKWARD)
    return depth, cpu_ns


def after_backward(token, args, result):
    """End the phase, read the loss."""
    depth, cpu_ns = token
    clock.unwind(depth)
    C.in_backward = False
    C.counted = False
    if cpu_ns:
        totals[COMPUTE_CPU_NS] += thread_time_ns() - cpu_ns
    if S.cuda:
        device.mark("backward_end")
    if C.flags & wire.F_OPT_IN_BACKWARD:
        C.pending = True
    loss = args[0] if args else None
    if isinstance(loss, (tuple, list)):
        loss = loss[0] if loss else None
    if loss is not None and not C.loss_is_known:
        note_loss(loss)
    C.loss_is_known = False
    if not roots.passes:
        steps.book_agent_time(roots.discover)
    elif not C.forwards:
        steps.book_agent_time(roots.look_again)


def before_grad(args, kwargs):
    """``autograd.grad`` counts as backward; before training begins it only leaves a trace."""
    if not S.thread_ident:
        return monotonic_ns()
    if C.in_backward:
        return None
    depth = len(clock.stack)
    if C.gap_phase >= 0:
        _book_loss()
    if not C.in_forward and not C.in_optimizer:
        _begin_outermost()
        C.grads += 1
    C.in_backward = True
    clock.enter(BACKWARD)
    return depth


def after_grad(token, args, result):
    """End the phase."""
    if not S.thread_ident:
        return activation.grad_ended(token)
    clock.unwind(token)
    C.in_backward = False


def note_loss(loss):
    """Read a loss that lies in the CPU's memory, or have the device's clock fetch it without waiting."""
    if type(loss) is not S.torch.Tensor or loss.numel() != 1:
        return
    if loss.is_cpu:
        if not dispatch_modes():  # reading a value is an operation that a user's mode would see
            C.loss_sum += loss.item()
            C.loss_count += 1
    elif S.cuda and loss.is_cuda:
        device.late_scalar("loss", loss)


def _begin_outermost():
    if S.phase == H2D:
        clock.switch(OTHER)
    if C.unsure:
        C.belongs_to_training()
    events.compute_begins()


def _book_loss():
    """What ran between a forward's end and its backward is the loss, if it took no longer than a loss would."""
    clock.book()
    gap_ns = totals[C.gap_phase] - C.gap_began
    if S.phase == C.gap_phase and gap_ns * LOSS_SHARE <= C.forward_ns:
        clock.move(gap_ns, C.gap_phase, FORWARD)
    C.gap_phase, C.forward_ns = -1, 0
