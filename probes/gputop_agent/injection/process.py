"""Forks and the end of the process."""

import atexit
import os
import sys
import time

from gputop_agent import api
from gputop_agent.injection import hello, thread
from gputop_agent.runtime import guard, interrupts, transport
from gputop_agent.runtime.session import SWITCHED_OFF, session
from gputop_agent.timing import events, sampling, steps
from gputop_agent.watchers import burst, exceptions

FLUSH_S = 0.2
_LAST_MESSAGE_S = 0.05


def install():
    """Register with the interpreter."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=after_fork)
    atexit.register(at_exit)


def after_fork():
    """In the child: a worker or a forked rank. Start from zero, silent until it trains."""
    if session.thread_ident < 0:
        return
    begin_anew()


def begin_anew():
    """Forget the run so far: silent until it trains again."""
    try:
        session.reset()
        for reset in session.resets:
            guard.safely(reset)
    except Exception:
        interrupts.pass_on()
        guard.switch_off()


def at_exit():
    """Close the last step and send what waits. Also a finalizer of multiprocessing: its forked
    children skip atexit.
    """
    try:
        if session.thread_ident > 0 and session.pid == os.getpid() != session.ended_pid:
            session.ended_pid = os.getpid()
            _end()
        elif session.thread_ident == SWITCHED_OFF:  # or Python may warn of a socket left open
            transport.close()
    except BaseException:  # also what a signal's handler raised: Python would only print it
        session.errors += 1


def _end():
    ended_by = exceptions.of_multiprocessing()
    if ended_by is not None:
        guard.safely(exceptions.report, ended_by, ended_by.__traceback__)
    guard.safely(sampling.settle)
    guard.safely(burst.finish)
    guard.safely(events.process_ends)
    guard.safely(steps.end_record)
    guard.safely(api.flush, float("inf"))
    guard.safely(transport.reach_again)
    guard.safely(hello.send_last)
    has_raised = ended_by is not None or getattr(sys, "last_value", None) is not None
    reason = "exception" if has_raised else "exit"
    transport.send_event(
        "goodbye", steps=session.step, dropped=session.dropped, errors=session.errors, reason=reason
    )
    guard.safely(thread.stop)
    transport.close(FLUSH_S)
    guard.safely(_let_gloo_finish)


def _let_gloo_finish():
    """Leave the interpreter's lock to gloo's threads for a moment.

    A message sent in a backward holds a Python object (``torch/autograd/graph.py`` stashes the
    context since 2.13), so the thread that frees the last one asks for the lock. Where that
    meets the interpreter's end, C++ ends the process (``terminate called without an active
    exception``): of bare ranks that end right after a backward, one of eight.
    """
    if session.world_size > 1:
        time.sleep(_LAST_MESSAGE_S)


def finalize_forked_child():
    """Called when training begins: children of multiprocessing's fork end by ``os._exit``."""
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        util.Finalize(None, at_exit, exitpriority=-100)
