"""Silence until a process trains: nothing is opened, sent or searched before its first backward or
optimizer step.

Many use ``autograd.grad`` without training anything. Where a parameter that it was asked about has
been changed in place before it is asked again, updates are made by hand, and the first of them lies
behind us.
"""

import weakref
from _thread import get_ident
from threading import enumerate as living_threads
from time import monotonic_ns
from typing import Any

from gputop_agent import wire
from gputop_agent.runtime import guard, interrupts, modes
from gputop_agent.runtime.sentinel import sentinel
from gputop_agent.runtime.session import (
    BACKWARD,
    DATA,
    FORWARD,
    NOT_ACTIVE,
    OTHER,
    SWITCHED_OFF,
    session,
)
from gputop_agent.timing import clock, startup, step_state, steps
from gputop_agent.timing.step_state import open_step

on_start: Any = []  # called when a thread begins to train
IDLE_NS = 2_000_000_000


class Trail:
    """What came before we knew that this process trains: last fetch and ``autograd.grad``."""

    thread_ident = 0
    fetch: Any = None  # (began_ns, ended_ns, samples, tokens)
    loader: Any = None  # description of the DataLoader that was asked
    grad: Any = None  # (began_ns, ended_ns)
    # (fetch, grad, weakref to a parameter, its version) of what may have been the first step
    by_hand: Any = None
    asked: Any = None  # the parameter that the ``autograd.grad`` going on is asked about


def before_training():
    """Whether training has not begun: then fetches and ``autograd.grad`` only leave a trail."""
    return session.thread_ident == NOT_ACTIVE


def fetch_ended(began_ns, samples, tokens, loader):
    """A batch was fetched before training began."""
    Trail.loader = loader
    Trail.thread_ident = get_ident()
    Trail.fetch = (began_ns, monotonic_ns(), samples, tokens)
    startup.batch_came(began_ns)


@modes.unseen
def grad_ended(began_ns):
    """``autograd.grad`` ended before training began."""
    Trail.grad = (began_ns, monotonic_ns())
    parameter, Trail.asked = Trail.asked, None
    if parameter is not None:
        Trail.by_hand = Trail.fetch, Trail.grad, weakref.ref(parameter), parameter._version


@modes.unseen
def trains_by_hand(parameter):
    """Whether an update of ``parameter`` (or None) is seen; ``autograd.grad`` begins"""
    Trail.asked = parameter
    if parameter is None or Trail.by_hand is None or Trail.thread_ident not in (0, get_ident()):
        return False
    fetch, grad, reference, version = Trail.by_hand
    if reference() is not parameter or parameter._version == version:
        return False
    now_ns, second = monotonic_ns(), Trail.fetch if Trail.fetch is not fetch else None
    Trail.asked, Trail.fetch, Trail.grad = None, fetch, None
    start(grad[0])
    _close_first_step(grad, parameter, second[0] if second else now_ns)
    if second:
        _book_first_step(second, now_ns, True)
    session.last_ns = now_ns
    return True


def _close_first_step(grad, parameter, end_ns):
    """The step is over whose gradients were asked for first: all but its update is booked."""
    totals = clock.totals
    totals[BACKWARD] += grad[1] - grad[0]
    totals[OTHER] += end_ns - grad[1]
    totals[clock.MICRO_BATCHES] += 1
    open_step.backwards, open_step.forwards = 1, 1
    open_step.flags |= wire.F_NO_OPT_EVENT
    sentinel.follow(parameter)
    session.last_ns = end_ns
    open_step.belongs_to_training()
    steps.close(end_ns)
    # the hello's time: what has been since then is booked once
    totals[session.phase] -= session.last_ns - end_ns


def start(now_ns, by_backward=True):
    """Make this the training thread. Its first step began with the fetch that led here, if any."""
    if Trail.thread_ident == get_ident() and by_backward:
        fetched = Trail.fetch
    else:
        fetched = None
    guard.safely(startup.first_backward, fetched[1] if fetched else 0, now_ns)
    session.native_tid = _native_tid()
    session.thread_ident = get_ident()
    clock.reset()
    step_state.reset()
    if Trail.thread_ident == session.thread_ident:
        fetch = Trail.fetch
    else:
        fetch = None
    session.last_ns = fetch[0] if fetch else now_ns
    steps.reset()
    if fetch:
        _book_first_step(fetch, now_ns, by_backward)
    session.last_ns = now_ns
    open_step.loader = Trail.loader if fetch else None
    Trail.fetch = Trail.grad = Trail.loader = Trail.by_hand = None
    for listener in on_start:
        listener()


def adopt(by_backward=True):
    """Whether a thread with a backward or an optimizer step becomes the training thread"""
    now_ns = monotonic_ns()
    if session.thread_ident == NOT_ACTIVE:
        start(now_ns, by_backward)
        return True
    if (
        session.thread_ident == SWITCHED_OFF
        or now_ns - session.last_ns < IDLE_NS
        or _alive(session.thread_ident)
    ):
        return False
    _take_over(now_ns)
    return True


def _take_over(now_ns):
    """The training thread has ended and another one trains on."""
    clock.unwind(0)
    open_step.in_forward = open_step.in_backward = False
    open_step.in_optimizer = 0
    session.thread_ident, session.native_tid = get_ident(), _native_tid()
    steps.fold.cpu_base_ns = -1
    if open_step.pending:
        steps.close(clock.book())


def _book_first_step(fetch, now_ns, by_backward):
    """The first step's forward ran before any module was known: what lies between fetch and
    backward was that.

    An optimizer that steps before any backward runs forward and backward in its closure, and
    nothing lay before.
    """
    began, ended, samples, tokens = fetch
    totals = clock.totals
    totals[DATA] += ended - began
    if Trail.grad and Trail.grad[0] >= ended:
        grad_ns = Trail.grad[1] - Trail.grad[0]
    else:
        grad_ns = 0
    open_step.grads = 1 if grad_ns else 0
    open_step.forwards = 1 if grad_ns or by_backward else 0
    totals[BACKWARD] += grad_ns
    totals[FORWARD if open_step.forwards else OTHER] += now_ns - ended - grad_ns
    open_step.samples, open_step.tokens, open_step.unsure = samples, tokens, True
    open_step.last_fetch_step = session.step


def _alive(ident):
    return any(thread.ident == ident for thread in living_threads())


def _native_tid():
    try:
        from threading import get_native_id

        return get_native_id()
    except Exception:
        interrupts.pass_on()
        return 0


@session.after_fork
def reset():
    """In a forked child."""
    Trail.fetch = Trail.grad = Trail.loader = Trail.by_hand = Trail.asked = None


steps.on_manual_start = start
