"""Pauses of Python's garbage collector. They lie inside the phases and are counted beside them."""

import gc
from time import monotonic_ns

from gputop_agent import clock, guard, lane, transport
from gputop_agent.state import S

MIN_EVENT_NS = 10_000_000

_began_ns = 0


def install(torch):
    """Register with the collector."""
    gc.callbacks.append(on_gc)
    S.undo.append(lambda: gc.callbacks.remove(on_gc))


def on_gc(phase, info):
    """The collector calls this at the start and the end of a collection."""
    global _began_ns
    try:
        if phase == "start":
            _began_ns = monotonic_ns()
        elif _began_ns and S.thread_ident > 0:
            _ended(monotonic_ns() - _began_ns, info)
    except Exception:
        guard.failed("on_gc")


def _ended(pause_ns, info):
    if lane.marks:
        lane.pauses.append((len(lane.segments), pause_ns))
    else:
        clock.totals[clock.GC_NS] += pause_ns
    if pause_ns >= MIN_EVENT_NS:
        generation = info.get("generation")
        transport.send_event("gc", step=lane.step(), duration_ms=round(pause_ns / 1e6, 3), generation=generation)
