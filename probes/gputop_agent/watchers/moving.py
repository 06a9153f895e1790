"""Tells the recorder that the training works although no step ends: a long evaluation, checkpoint
or compilation.

Looked at from the agent's thread. The training thread moves where it has passed one of our hooks
since the last look, such as the forward of another batch; where it compiles; and where, inside a
phase of such long work, it stands at another instruction and has used the CPU, or its process has
read or written. A loop of the user's own may be endless.
"""

import sys
from time import monotonic

from gputop_agent import wire
from gputop_agent.runtime import current, descriptors, frames, interrupts, transport
from gputop_agent.runtime.session import CHECKPOINT, COMPILE, EVAL, session

try:
    from time import clock_gettime, pthread_getcpuclockid
except ImportError:  # not on this system
    clock_gettime = pthread_getcpuclockid = None

PERIOD_S = 2.0
# a compilation waits for its workers, which nothing here sees; for so long it is believed to move
COMPILES_S = 600.0
_CPU_SHARE = 0.1
_BYTES = 1 << 20
_DEPTH = 16


class LastLook:
    """What the last look has seen."""

    def __init__(self):
        self._looked = monotonic()
        self._step = -1
        self._hook = 0
        self._place = None
        self._cpu_s = 0.0
        self._bytes = 0
        self._compiles_since = 0.0

    def look_if_due(self, now):
        """Send a ``moving`` event if no step ended since the last look, but something moved."""
        if now - self._looked < PERIOD_S:
            return
        frame = sys._current_frames().get(session.thread_ident)
        phase, step = current.phase(frame), current.step()
        hook = session.last_ns
        silent = step == self._step
        moved = silent and (hook != self._hook or self._works(phase, frame, now))
        self._looked, self._step, self._hook = now, step, hook
        if moved:
            transport.send_event("moving", phase=wire.PHASES[phase], step=step)

    def _works(self, phase, frame, now):
        """Whether the thread gets on inside a phase that may be long."""
        if phase != COMPILE:
            self._compiles_since = 0.0
        if phase == COMPILE:
            self._compiles_since = self._compiles_since or now
            return now - self._compiles_since < COMPILES_S
        if phase not in (EVAL, CHECKPOINT):
            return False
        location = tuple(
            (id(frame_.f_code), frame_.f_lasti) for frame_ in frames.stack(frame, _DEPTH)
        )
        cpu_s, done = _cpu_s(), _bytes() if phase == CHECKPOINT else 0
        used = cpu_s - self._cpu_s > _CPU_SHARE * (now - self._looked) and location != self._place
        wrote = done - self._bytes > _BYTES
        was_known = self._place is not None
        self._place, self._cpu_s, self._bytes = location, cpu_s, done
        return was_known and (used or wrote)


def _cpu_s():
    """CPU time of the training thread."""
    if pthread_getcpuclockid is None or clock_gettime is None:
        return 0.0
    try:
        return clock_gettime(pthread_getcpuclockid(session.thread_ident))
    except (OSError, ValueError):
        interrupts.pass_on()
        return 0.0


def _bytes():
    """What the process has read and written so far, from anywhere to anywhere."""
    try:
        words = descriptors.read("/proc/self/io", 512).split()
        return int(words[1]) + int(words[3])
    except (OSError, IndexError, ValueError):
        interrupts.pass_on()
        return 0
