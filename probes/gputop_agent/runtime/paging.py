"""Page faults of this process and its time in the kernel, which is what they cost."""

import os
from collections import Counter
from time import monotonic, sleep

from gputop_agent import wire
from gputop_agent.runtime import descriptors, interrupts, looks, transport
from gputop_agent.runtime.session import session

try:
    import resource
except ImportError:  # not a Unix
    resource = None

_MANY_PER_S = 2000.0
_MINOR_FAULTS, _SYSTEM_TIME = 7, 12  # fields of a thread's stat
_CLOSE_LOOKS, _READINGS, _READING_S = 4, 64, 0.002
_MIN_INTERVAL_S, _MAX_INTERVAL_S = 1.0, 30.0


class PagingWatch:
    """Reads the process's counters (1 us a look); a ``paging`` event a period of many faults."""

    def __init__(self):
        self._started = self._looked = monotonic()
        self._before = _counters()
        self._close_looks = 0

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
                phases=self._phases(),
            )

    def _phases(self):
        """A few times in a run: how many faults came in which phase, by a closer look."""
        self._close_looks += 1
        return _faults_by_phase() if self._close_looks <= _CLOSE_LOOKS else {}


def _faults_by_phase():
    """``{"backward": 20412}``, of the training thread in an eighth of a second; what came while the
    phase changed is left out.
    """
    by_phase = Counter()
    phase, faults = session.phase, _of_training_thread(_MINOR_FAULTS)
    for _ in range(_READINGS):
        sleep(_READING_S)
        phase_before, faults_before = phase, faults
        phase, faults = session.phase, _of_training_thread(_MINOR_FAULTS)
        if phase == phase_before and phase < len(wire.PHASES):
            by_phase[wire.PHASES[phase]] += faults - faults_before
    return {name: count for name, count in by_phase.items() if count > 0}


def _counters():
    """Minor faults and seconds in the kernel, of all threads, and seconds in the kernel of the
    training thread, which alone make a step longer; zeros where the system does not count.
    """
    if resource is None:
        return 0, 0.0, 0.0
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_minflt, usage.ru_stime, _training_thread_s()


def _training_thread_s():
    return _of_training_thread(_SYSTEM_TIME) / os.sysconf("SC_CLK_TCK")


def _of_training_thread(field):
    """A number of its stat; 0 where that cannot be read."""
    try:
        fields = descriptors.stat_fields("/proc/self/task/%d/stat" % session.native_tid)
        return int(fields[field])
    except (OSError, ValueError, IndexError, TypeError):
        interrupts.pass_on()
        return 0
