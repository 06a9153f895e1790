"""Other Python threads of the training process that use the CPU: they compete for the interpreter's
lock.

Their CPU time is read from /proc once a second, less often as the run gets long; only of a busy one
is the line looked up.
"""

import os
import sys
import threading
import time
from time import monotonic

from gputop_agent.runtime import descriptors, frames, interrupts, looks, transport
from gputop_agent.runtime.session import session
from gputop_agent.watchers.stacks import stacks

OWN_NAME = "gputop-agent"
_BUSY = 0.2  # of a core
_TOP = 4
_MAX_THREADS = 64
_MIN_INTERVAL_S, _MAX_INTERVAL_S = 0.1, 30.0


class RivalWatch:
    """CPU time by thread between two looks, and where the busy ones were seen."""

    def __init__(self):
        self._used_ns = _cpu_times(_others())  # native id -> CPU time at the last look
        self._started = self._looked = monotonic()
        # ident of a thread that was busy at the last look -> {(site, function, caller): count}
        self._busy = {}

    @property
    def busy(self):
        """Whether another Python thread was busy at the last look."""
        return bool(self._busy)

    def sample(self):
        """Count the lines of the threads that are known to be busy."""
        if not self._busy:
            return
        current = sys._current_frames()
        for ident, places in self._busy.items():
            frame = current.get(ident)
            if frame is not None:
                location = stacks.describe(frames.still(frame))[:3]
                places[location] = places.get(location, 0) + 1

    def look_if_due(self, now_s):
        """Look every second at first, every 30 s in the end."""
        if now_s - self._looked >= looks.rarer(now_s - self._started, 0.0, _MAX_INTERVAL_S):
            self.look(now_s)

    def look(self, now_s):
        """Read CPU times; send a ``threads`` event if a thread used a fifth of a core meanwhile."""
        if now_s - self._looked < _MIN_INTERVAL_S:
            return
        threads = _others()
        used = _cpu_times(threads)
        elapsed_ns, self._looked = max(1.0, (now_s - self._looked) * 1e9), now_s
        before, self._used_ns = self._used_ns, used
        shares = {
            thread: (used[thread.native_id] - before.get(thread.native_id, 0)) / elapsed_ns
            for thread in threads
        }
        busy = sorted(
            (thread for thread in shares if shares[thread] > _BUSY),
            key=lambda thread: -shares[thread],
        )
        places, self._busy = self._busy, {thread.ident: {} for thread in busy[:_TOP]}
        if busy:
            transport.send_event(
                "threads",
                period_ms=round(elapsed_ns / 1e6, 1),
                threads=[
                    _described(thread_, shares[thread_], places.get(thread_.ident))
                    for thread_ in busy[:_TOP]
                ],
            )


def _others():
    """Python threads beside the training's and our own; takes no lock of the training's."""
    every = list(getattr(threading, "_active", {}).items())[:_MAX_THREADS]
    other_threads = [
        thread
        for ident, thread in every
        if ident != session.thread_ident and thread.name != OWN_NAME
    ]
    return [thread for thread in other_threads if getattr(thread, "native_id", None)]


def _cpu_times(threads):
    return {thread.native_id: _cpu_ns(thread.native_id) for thread in threads}


def _described(thread, share, places):
    if places:
        site, function, caller = max(places, key=lambda place: places[place])
    else:
        site, function, caller = ("", "", "")
    return {
        "name": thread.name,
        "cpu_share": round(share, 3),
        "site": site,
        "function": function,
        "caller": caller,
        "age_s": _age_s(thread.native_id),
    }


def _age_s(native_id):
    """Seconds since a thread began, by /proc (to 10 ms); None where the system does not tell."""
    try:
        fields = descriptors.stat_fields("/proc/self/task/%d/stat" % native_id)
        # field 22 of the line, counted from the state
        began_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return round(max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - began_s), 2)
    except (OSError, ValueError, IndexError, AttributeError):
        interrupts.pass_on()
        return None


def _cpu_ns(native_id):
    """Nanoseconds that a thread has run; -1 where the system does not tell."""
    try:
        return int(descriptors.read("/proc/self/task/%d/schedstat" % native_id, 64).split()[0])
    except (OSError, ValueError, IndexError):
        interrupts.pass_on()
        return -1
