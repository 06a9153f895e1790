"""Backward passes: ``torch.autograd.backward`` (under ``Tensor.backward``) and ``torch.autograd.grad``."""

from _thread import get_ident
from functools import lru_cache
from time import monotonic_ns, thread_time_ns
from typing import Any

from gputop_agent import (
    activation,
    batch,
    checkup,
    clock,
    device,
    events,
    guard,
    interrupts,
    lane,
    modes,
    roots,
    steps,
    thin,
    wire,
)
from gputop_agent.clock import COMPUTE_CPU_NS, MICRO_BATCHES, SAMPLES, TOKENS, stack, totals
from gputop_agent.cycle import C
from gputop_agent.lane import LOSS_SHARE, L, cpu_marks, losses, marks
from gputop_agent.sentinel import sentinel
from gputop_agent.state import BACKWARD, FORWARD, H2D, OTHER, S
from gputop_agent.steps import F

from . import optimizer

_compiling: Any = None
dispatch_modes: Any = None
tensor_type: Any = None
_wrappers: Any = []  # of ``torch.autograd.backward``: the one that does all, the one that only counts
_STRIDE, _LOSS_MARKS = thin.STRIDE, thin.STRIDE * thin.LOSS_EVERY


def install(torch):
    """Wrap both functions where everybody looks them up."""
    global _compiling, dispatch_modes, tensor_type
    _compiling = guard.compiling_flags()
    tensor_type = torch.Tensor
    dispatch_modes = torch._C._len_torch_dispatch_stack
    autograd = torch.autograd
    thin.counter = counter = lru_cache(maxsize=0)(autograd.backward)  # calls it each time, and counts: all of it in C
    full = _timed_backward(autograd.backward, counter)
    _wrappers[:] = full, counter
    guard.patch(autograd, "backward", full)
    guard.patch(autograd, "grad", guard.around(autograd.grad, before_grad, after_grad, activation.before_training))


def bypass(on):
    """Put the counter in the place of the other one, or that back, unless somebody else's lies there."""
    autograd = S.torch.autograd
    old, new = _wrappers if on else reversed(_wrappers)
    if autograd.backward is old:
        autograd.backward = new


def read_loss():
    """In the thin step that has begun the backward leaves its loss, too."""
    bypass(False)


def _timed_backward(original, counter):
    """What ``guard.around`` makes of ``before_backward`` and ``after_backward``, with the common case written out.

    That is a backward with nothing around it that follows the forward of a known module.
    """

    def wrapper(*args, **kwargs):
        try:
            token, cpu_ns, fast, noted, call = None, 0, False, False, original
            try:
                turn = len(L.marks) & 7
                if L.thin:
                    if get_ident() != S.thread_ident:
                        pass
                    elif _in_thin_step(args):
                        call = counter
                    else:
                        lane.leave()
                        token = before_backward(args, kwargs)
                elif turn == 4 and get_ident() == L.ident:
                    noted = True
                    L.note(L.now())
                    if L.probing:
                        cpu_marks.append(thread_time_ns())
                elif not _compiling["_is_compiling_flag"] and (get_ident() == S.thread_ident or activation.adopt()):
                    if turn == 5:  # inside another backward
                        L.nested = True
                    elif marks:
                        lane.leave()
                        token = before_backward(args, kwargs)
                    elif stack or C.gap_phase != OTHER or S.phase != OTHER or C.unsure:
                        token = before_backward(args, kwargs)
                    else:
                        now = monotonic_ns()
                        totals[OTHER] += now - S.last_ns
                        S.last_ns = now
                        gap_ns = totals[OTHER] - C.gap_began
                        if gap_ns * LOSS_SHARE <= C.forward_ns:  # what ``_book_loss`` does
                            totals[OTHER] -= gap_ns
                            totals[FORWARD] += gap_ns
                        C.gap_phase, C.forward_ns = -1, 0
                        if C.pending or C.backwards:
                            events.compute_begins()
                        if C.look:
                            checkup.before_backward()
                        sentinel.unseen += 1
                        C.backwards += 1
                        totals[MICRO_BATCHES] += 1
                        if C.inputs is not None:
                            _count_inputs()
                        if len(args) > 3 and args[3]:
                            S.create_graph_seen = True
                        if F.probing:
                            cpu_ns = thread_time_ns()
                        C.in_backward = fast = True
                        stack.append(OTHER)
                        S.phase = BACKWARD
            except Exception:
                guard.failed("backward")
            try:
                return call(*args, **kwargs)
            finally:
                if noted:
                    try:
                        if len(L.marks) & 7 == 5:
                            if L.probing:
                                cpu_marks.append(thread_time_ns())
                            L.note(L.now())
                            losses.append(_value(args))
                            if losses[-1] is None:
                                lane.leave()
                                if args:
                                    note_loss(args[0])
                        else:
                            lane.leave()
                            after_backward((0, L.cpu_ns), args, None)
                    except Exception:
                        guard.failed("backward")
                elif fast:
                    try:
                        now = monotonic_ns()
                        totals[S.phase] += now - S.last_ns
                        S.last_ns = now
                        S.phase = OTHER
                        del stack[:]
                        C.in_backward = False
                        if cpu_ns:
                            totals[COMPUTE_CPU_NS] += thread_time_ns() - cpu_ns
                        if S.cuda:
                            device.mark("backward_end")
                        if C.flags & wire.F_OPT_IN_BACKWARD or not C.forwards or not roots.passes or C.loss_is_known:
                            _look_after(args)
                        elif args:
                            note_loss(args[0])
                    except Exception:
                        guard.failed("backward")
                elif token is not None:
                    try:
                        after_backward(token, args, None)
                    except Exception:
                        guard.failed("backward")
        except BaseException as error:
            guard.vanish(error, "backward")
            raise

    return guard.dress(wrapper, original)


def _in_thin_step(args):
    """Whether the backward that begins is one to be counted. The first of 64 steps leaves its loss."""
    noted = len(marks)
    if noted % _STRIDE:
        return False
    if noted % _LOSS_MARKS == _STRIDE:
        value = _value(args)
        if value is None:
            return False
        losses.append(value)
    bypass(True)
    return True


@modes.unseen
def _value(args):
    """A loss of one value in the CPU's memory; None for another one."""
    loss: Any = args[0] if args else None
    try:
        if type(loss) is tensor_type and loss.is_cpu and not dispatch_modes():
            return loss.item()
    except Exception:  # more than one value
        interrupts.pass_on()
    return None


def before_backward(args, kwargs):
    """Begin the phase; a backward inside another one (re-entrant checkpointing) is part of that."""
    if C.in_backward:
        return None
    if C.in_optimizer:
        optimizer.heal()
    if (len(args) > 3 and args[3]) or kwargs.get("create_graph"):
        S.create_graph_seen = True
    depth = len(clock.stack)
    if C.gap_phase >= 0:
        _book_loss()
    if not C.in_forward and not C.in_optimizer:
        _begin_outermost()
    if C.look:
        checkup.before_backward()
    sentinel.unseen += 1
    C.backwards += 1
    totals[MICRO_BATCHES] += 1
    if C.inputs is not None:
        _count_inputs()
    C.in_backward = True
    cpu_ns = thread_time_ns() if F.probing else 0
    clock.enter(BACKWARD)
    return depth, cpu_ns


def _count_inputs():
    """Without a DataLoader a micro-batch is what the last forward before a backward was given.

    Forwards whose graph no backward uses (a policy that acts) count nothing. Of several optimizers each may have
    backwards of the same batch, so then only those count that begin at the line of the step's first one.
    """
    (args, kwargs), C.inputs = C.inputs, None
    if len(events.known_optimizers) > 1:
        place = events.place()
        C.counted_at = C.counted_at or place
        if C.counted_at != place:
            return
    samples, tokens = batch.count_inputs(args, kwargs)
    totals[SAMPLES] += samples
    totals[TOKENS] += tokens


def after_backward(token, args, result):
    """End the phase, read the loss."""
    depth, cpu_ns = token
    clock.unwind(depth)
    C.in_backward = False
    if cpu_ns:
        totals[COMPUTE_CPU_NS] += thread_time_ns() - cpu_ns
    if S.cuda:
        device.mark("backward_end")
    _look_after(args)


def _look_after(args):
    if C.flags & wire.F_OPT_IN_BACKWARD:
        C.pending = True
    if args and not C.loss_is_known:
        note_loss(args[0])
    C.loss_is_known = False
    if not roots.passes:
        steps.book_agent_time(roots.discover)
    elif not C.forwards:
        steps.book_agent_time(roots.look_again)
    if sentinel.reference is None and not sentinel.events and args:
        roots.watch_leaf(args[0])


def before_grad(args, kwargs):
    """``autograd.grad`` counts as backward; before training begins it only leaves a trace."""
    if not S.thread_ident and not activation.trains_by_hand(_parameter(args, kwargs)):
        return monotonic_ns()
    if C.in_backward:
        return None
    if kwargs.get("create_graph"):
        S.create_graph_seen = True
    depth = len(clock.stack)
    if C.gap_phase >= 0:
        _book_loss()
    if not C.in_forward and not C.in_optimizer:
        _begin_outermost()
        C.grads += 1
        if sentinel.by_grads:
            sentinel.unseen += 1
            C.backwards += 1
            totals[MICRO_BATCHES] += 1
    C.in_backward = True
    clock.enter(BACKWARD)
    return depth


def after_grad(token, args, result):
    """End the phase."""
    if not S.thread_ident:
        return activation.grad_ended(token)
    clock.unwind(token)
    C.in_backward = False
    if sentinel.by_grads:
        _look_after(args)


def _parameter(args, kwargs):
    """The first parameter that gradients are asked for; None without any, or where looking would use them up."""
    inputs = args[1] if len(args) > 1 else kwargs.get("inputs")
    asked = inputs if isinstance(inputs, (list, tuple)) else (inputs,)
    return next((one for one in asked if isinstance(one, S.torch.nn.Parameter)), None)


@modes.unseen
def note_loss(loss):
    """Read a loss that lies in the CPU's memory, or have the device's clock fetch it without waiting."""
    if type(loss) is not tensor_type:
        if isinstance(loss, (tuple, list)) and loss:
            note_loss(loss[0])
    elif loss.numel() != 1:
        return
    elif loss.is_cpu:
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
