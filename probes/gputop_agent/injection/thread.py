"""The agent's one thread: flushes stale records, runs the recorder's commands, samples the training
thread's stack.

It never calls CUDA (that could break a stream capture in the training thread) and never takes a
lock of the training. It starts with the hello, does not survive a fork, and leaves without a word
when the interpreter shuts down.
"""

import _thread
import atexit
import os
import sys
from time import monotonic, monotonic_ns
from typing import Any

from gputop_agent import api
from gputop_agent.injection import debugging, hello
from gputop_agent.runtime import affinity, guard, looks, paging, transport
from gputop_agent.runtime.session import session
from gputop_agent.timing import memory, sampling
from gputop_agent.timing.own_cost import own_cost
from gputop_agent.watchers import moving
from gputop_agent.watchers.loaders import fetches
from gputop_agent.watchers.nan import nan_place
from gputop_agent.watchers.stacks import rivals, stacks

#: (until this many seconds after the start, seconds between two looks): quick while the first
#: answers are wanted, since a place needs some tens of looks. A tick takes 25-150 us, mostly cold
#: caches after the wake-up: 0.4 % of a core at first, below 0.1 % at the last rate.
RATES = ((12.0, 0.025), (40.0, 0.06), (120.0, 0.11), (float("inf"), 0.21))
_MAX_COMMANDS_PER_TICK = 8
#: Between two looks for commands and at the resident set: each system call gives up the
#: interpreter's lock, and the training is stopped once more until this thread has it again.
_EXCHANGE_S = 0.2
_MAX_FAILURES = 3
_END_S = 0.5  # that the end waits for a tick at most; one takes a tenth of a millisecond
_IDLE_S = 0.5  # between ticks while no recorder listens, and the most beside busy threads
#: Times as long are the pauses beside busy Python threads of the user's: whoever gives up the
#: interpreter's lock there waits up to 5 ms for it, and a tick makes the training give it up.
_SHARED_TIMES = 4


class _Agent:
    """The thread of this process."""

    def __init__(self):
        self.pid = 0
        #: a held lock: to wait for it with a timeout is the cheapest sleep that can be cut short
        self.wake: Any = None
        #: held while the thread lives
        self.lives: Any = None
        self.loop: Any = None
        self.registered = False


_agent = _Agent()


def start():
    """Start the thread unless this process has it already."""
    if _agent.pid == os.getpid():
        return
    _agent.pid = os.getpid()
    _agent.wake = _thread.allocate_lock()
    _agent.wake.acquire()
    _agent.lives = _thread.allocate_lock()
    _agent.lives.acquire()
    if not _agent.registered:
        _agent.registered = True
        atexit.register(guard.safely, stop)
    # one of threading's would be among the user's own
    _thread.start_new_thread(_live, (_agent.wake, _agent.pid, _agent.lives))


def stop():
    """Ask the thread to end, wait until its tick is over, and send what the sampler has counted.

    A tick may free what the training has left, such as the frames it looked at with their graphs.
    The interpreter's end would meet it in a destructor of torch's, and C++ ends the process there
    (``terminate called without an active exception``).
    """
    if _agent.pid == os.getpid() and _agent.wake is not None and _agent.wake.locked():
        _agent.wake.release()
        _agent.lives.acquire(True, _END_S)
        looks.restore()
        if _agent.loop is not None and session.connected:
            _agent.loop.sampler.flush()
            _agent.loop.fetches.flush()
            nan_place.tell()
            _agent.loop.rivals.look(monotonic())
    _agent.pid = 0


@session.after_fork
def reset():
    """The thread did not survive the fork (called in the child)."""
    _agent.pid = 0
    looks.restore()


def _live(wake, pid, lives):
    try:
        guard.safely(_run, wake, pid)  # an exception in a bare thread would be printed
    finally:
        lives.release()


def _run(wake, pid):
    session.agent_ident = _thread.get_ident()
    guard.attempt(_be_on_time)
    loop = _agent.loop = ThreadLoop()
    failures = 0
    while not wake.acquire(True, loop.moments.pause_s()):
        if sys.is_finalizing() or os.getpid() != pid:
            return
        try:
            connected = loop.tick()
        except Exception:  # the training does not notice
            guard.failed("agent thread")
            failures += 1
            if failures > _MAX_FAILURES:
                return
            connected = True
        loop.moments.plan(loop.period_s() if connected else _IDLE_S)


def _be_on_time():
    """Wake this thread when it asked for: Linux may let it sleep 50 us longer, in which plain
    Python that a look is for has passed. Where that is not allowed it sleeps longer.
    """
    with open("/proc/%d/timerslack_ns" % _thread.get_native_id(), "w") as slack:
        slack.write("1")


class ThreadLoop:
    """What one tick does."""

    def __init__(self):
        self.sampler = stacks.StackSampler()
        self.rivals = rivals.RivalWatch()
        self.fetches = fetches.FetchWatch()
        self.affinity = affinity.AffinityWatch()
        self.paging = paging.PagingWatch()
        self.debugging = debugging.DebugAids()
        self.moving = moving.LastLook()
        self._second = self._exchanged = 0.0
        self._started = monotonic()
        self.moments = looks.Moments(RATES[0][1])

    def tick(self):
        """One round. Returns whether a recorder listens.

        It looks before it sends or reads: whatever gives up the interpreter's lock between moment
        and look lets the training go on.
        """
        self.moments.come()
        if session.connected:
            self._look(self.moments.passed(self.period_s()))
        now_ns = monotonic_ns()
        sampling.watch(now_ns)
        transport.flush_if_stale(now_ns)
        now_s = monotonic()
        if now_s - self._exchanged >= _EXCHANGE_S:
            self._exchanged = now_s
            self._run_commands()
            memory.refresh_rss(now_ns)
        if not session.connected:
            return False
        if not session.hello_sent:
            hello.send_again()
        nan_place.tell()
        if now_s - self._second >= 1.0:
            self._second = now_s
            self.sampler.flush_if_due()
            self.rivals.look_if_due(now_s)
            self.fetches.flush_if_due()
            self.affinity.look()
            self.paging.look_if_due(now_s)
            self.moving.look_if_due(now_s)
            api.flush(now_s)
            hello.send_updates(now_s)
            memory.send_if_due(now_s)
            own_cost.send_if_due(now_s)
        return True

    def _look(self, times):
        self.sampler.sample(times)
        self.rivals.sample()
        self.fetches.look()
        self.debugging.sample()

    def period_s(self):
        """Seconds between two looks, by the age of the run and who else wants the interpreter."""
        period = looks.period_at(RATES, monotonic() - self._started)
        return min(_IDLE_S, period * _SHARED_TIMES) if self.rivals.busy else period

    def _run_commands(self):
        for _ in range(_MAX_COMMANDS_PER_TICK):
            command = transport.poll_command()
            if command is None:
                return
            execute(command)


def execute(command):
    """Run one command of the recorder; an unknown one is a newer recorder's and is ignored."""
    name = command.get("cmd")
    if name == "dump":
        from gputop_agent.watchers.stacks import dump

        dump.send(command.get("reason", ""))
    elif name == "flight_recorder":
        from gputop_agent.watchers import flight

        flight.send(command.get("reason", ""))
    elif name == "profile":
        from gputop_agent.watchers import burst

        burst.request(command)
    elif name == "layers":
        from gputop_agent.watchers.layers import layers

        layers.request(command)
    elif name == "memory_snapshot":
        from gputop_agent.watchers.memory import memory_history

        memory_history.request(command)
    elif name == "detach":
        guard.switch_off()


hello.on_said.append(start)
