"""Silence until a process trains: nothing is opened, sent or searched before its first backward or optimizer step."""

from _thread import get_ident
from threading import enumerate as living_threads
from time import monotonic_ns
from typing import Any

from . import clock, cycle, lane, steps
from .cycle import C
from .state import BACKWARD, DATA, FORWARD, NOT_ACTIVE, OTHER, SWITCHED_OFF, S

IDLE_NS = 2_000_000_000


class Trail:
    """What happened before we knew that this process trains: the last fetch and the last ``autograd.grad``."""

    thread_ident = 0
    fetch: Any = None  # (began_ns, ended_ns, samples, tokens)
    loader: Any = None  # description of the DataLoader that was asked
    grad: Any = None  # (began_ns, ended_ns)


def before_training():
    """Whether this process has not begun to train: then fetches and ``autograd.grad`` only leave a trail."""
    return S.thread_ident == NOT_ACTIVE


def fetch_ended(began_ns, samples, tokens, loader):
    """A batch was fetched before training began."""
    Trail.loader = loader
    Trail.thread_ident = get_ident()
    Trail.fetch = (began_ns, monotonic_ns(), samples, tokens)


def grad_ended(began_ns):
    """``autograd.grad`` ended before training began."""
    Trail.grad = (began_ns, monotonic_ns())


def start(now_ns, by_backward=True):
    """Make this thread the training thread. Its first step began with the fetch that led here, if there was one."""
    S.native_tid = _native_tid()
    S.thread_ident = get_ident()
    clock.reset()
    cycle.reset()
    fetch = Trail.fetch if Trail.thread_ident == S.thread_ident else None
    S.last_ns = fetch[0] if fetch else now_ns
    steps.reset()
    if fetch:
        _book_first_step(fetch, now_ns, by_backward)
    S.last_ns = now_ns
    C.loader = Trail.loader if fetch else None
    Trail.fetch = Trail.grad = Trail.loader = None
    from . import exceptions, process

    exceptions.install()
    process.finalize_forked_child()


def adopt(by_backward=True):
    """A backward or an optimizer step on a thread that is not the training thread: should it become that?"""
    now = monotonic_ns()
    if S.thread_ident == NOT_ACTIVE:
        start(now, by_backward)
        return True
    if S.thread_ident == SWITCHED_OFF or now - S.last_ns < IDLE_NS or _alive(S.thread_ident):
        return False
    _take_over(now)
    return True


def _take_over(now_ns):
    """The training thread has ended and another one trains on."""
    lane.leave()
    clock.unwind(0)
    C.in_forward = C.in_backward = False
    C.in_optimizer = 0
    S.thread_ident, S.native_tid = get_ident(), _native_tid()
    steps.F.cpu_base_ns = -1
    if C.pending:
        steps.close(clock.book())


def _book_first_step(fetch, now_ns, by_backward):
    """The first step's forward ran before any module was known: what lies between fetch and backward was that.

    An optimizer that steps before any backward runs forward and backward in its closure, and nothing lay before.
    """
    began, ended, samples, tokens = fetch
    totals = clock.totals
    totals[DATA] += ended - began
    grad_ns = Trail.grad[1] - Trail.grad[0] if Trail.grad and Trail.grad[0] >= ended else 0
    C.grads = 1 if grad_ns else 0
    C.forwards = 1 if grad_ns or by_backward else 0
    totals[BACKWARD] += grad_ns
    totals[FORWARD if C.forwards else OTHER] += now_ns - ended - grad_ns
    C.samples, C.tokens, C.unsure = samples, tokens, True
    C.last_fetch_step = 0


def _alive(ident):
    return any(thread.ident == ident for thread in living_threads())


def _native_tid():
    try:
        from threading import get_native_id

        return get_native_id()
    except Exception:
        return 0


def reset():
    """In a forked child."""
    Trail.fetch = Trail.grad = Trail.loader = None
