"""Page faults of this process and its time in the kernel, which is what they cost."""

import os
from time import monotonic

from gputop_agent.runtime import descriptors, interrupts, looks, transport
from gputop_agent.runtime.session import session

try:
    import resource
except ImportError:  # not a Unix
    resource = None

_MANY_PER_S = 2000.0
_SYSTEM_TIME = 12  # field of a thread's stat
_MIN_INTERVAL_S, _MAX_INTERVAL_S = 1.0, 30.0


class PagingWatch:
    """Reads the process's counters (1 us a look); a ``paging`` event a period of many faults."""

    def __init__(self):
        self._started = self._looked = monotonic()
        self._before = _counters()

    def look_if_due(self, now_s):
        """Look every second at first, every 30 s in the end."""
        due = looks.rarer(now_s - self._started, _MIN_INTERVAL_S, _MAX_INTERVAL_S)
        if now_s - self._looked < due:
            return
        elapsed_s, self._looked = now_s - self._looked, now_s
        before, self._before = self._before, _counters()
        faults, system_s, thread_s = (now - then for now, then in zip(self._before, before))
        if faults > _MANY_PER_S * elapsed_s:
            transport.send_event(
                "paging",
                period_ms=round(elapsed_s * 1e3, 1),
                faults=faults,
                system_ms=round(system_s * 1e3, 3),
                thread_system_ms=round(thread_s * 1e3, 3) if self._before[2] else None,
            )


def _counters():
    """Minor faults and seconds in the kernel, of all threads, and seconds in the kernel of the
    training thread, which alone make a step longer; zeros where the system does not count.
    """
    if resource is None:
        return 0, 0.0, 0.0
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_minflt, usage.ru_stime, _training_thread_s()


def _training_thread_s():
    try:
        fields = descriptors.stat_fields("/proc/self/task/%d/stat" % session.native_tid)
        return int(fields[_SYSTEM_TIME]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, TypeError):
        interrupts.pass_on()
        return 0.0
