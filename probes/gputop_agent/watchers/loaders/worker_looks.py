"""Which lines the worker processes of a DataLoader spend their time in, and their memory.

The first few workers of a loader each have a thread that looks at the worker's own stack now and
then, as the agent's thread looks at the training's, and sends what it saw over a connection apart.
It begins where torch tells a worker who it is, however the process was started.
"""

import _thread
import os
import sys
from multiprocessing import util
from time import monotonic, sleep

from gputop_agent.runtime import (
    descriptors,
    frames,
    guard,
    interrupts,
    looks,
    source,
    transport,
)
from gputop_agent.watchers.memory import collections_kept
from gputop_agent.watchers.stacks import stacks

WORKERS = 4  # of a loader; what the others do is the same
#: (until this many seconds after the start, seconds between two looks)
RATES = ((12.0, 0.05), (60.0, 0.1), (float("inf"), 0.25))
_MIN_INTERVAL_S, _MAX_INTERVAL_S = 2.0, 30.0
_MEMORY_S, _MOST_MEMORY_S = 0.25, 30.0  # between two readings, at first and in the end
_MEMORY_COST = 0.01  # of the time at most: a reading locks the process's memory map
_RISE_BYTES = 8 << 20
_END_S = 0.5  # that the worker's end waits for a tick at most
_LOOP = "_worker_loop"
_LOOP_FILE = os.path.join("data", "_utils", "worker.py")


def noting(original):
    """``WorkerInfo.__init__``, with which a worker begins."""

    def wrapper(self, *args, **kwargs):
        try:
            original(self, *args, **kwargs)
        except BaseException as error:
            guard.vanish(error, "WorkerInfo.__init__")
            raise
        guard.safely(_begin, self)

    return guard.dress(wrapper, original)


def _begin(info):
    """In the thread that makes the batches: start the one that looks at it."""
    is_process = getattr(info, "worker_method", None) in (None, "multiprocessing")
    if is_process and info.id < WORKERS:
        watch = WorkerWatch(info.id, _thread.get_ident(), getattr(info, "dataset", None))
        util.Finalize(None, guard.safely, (watch.end,), exitpriority=-100)
        _thread.start_new_thread(guard.safely, (watch.run,))


class WorkerWatch:
    """The thread of one worker, and what it has counted."""

    def __init__(self, number, ident, dataset):
        self._number = number  # among the loader's workers
        self._ident = ident  # of the thread that makes the batches
        self._pid = os.getpid()
        self._over = False
        self._ticks = _thread.allocate_lock()  # held while one goes on, and from the end
        self._started = self._flushed = monotonic()
        self._moments = looks.Moments(RATES[0][1])
        self._looks = self._idle = 0
        self._places = {}
        self._memory = []  # (time, bytes)
        self._memory_due = self._started
        self._dataset = dataset
        self._collections = collections_kept.GrowingCollection()
        self._looked_bytes = 0  # its memory when its collections were looked at last

    def run(self):
        """Look until the worker ends."""
        while True:
            sleep(self._moments.pause_s())
            if self._over or sys.is_finalizing() or os.getpid() != self._pid:
                return
            with self._ticks:
                self._tick()

    def _tick(self):
        self._moments.come()
        period_s = self._period_s()
        self.look(self._moments.passed(period_s))
        self._read_memory_if_due()
        self._flush_if_due()
        self._moments.plan(period_s)

    def _period_s(self):
        return looks.period_at(RATES, monotonic() - self._started)

    def look(self, times=1):
        """Count the line of the moment, where a batch is being made."""
        stack = _below_loop(sys._current_frames().get(self._ident))
        self._looks += times
        if not stack or _waits_for_order(stack):
            self._idle += times
            return
        site, function, caller, inside = stacks.describe(stack)
        place = stacks.SampledPlace(site, function, caller, stacks.path_of(stack))
        stacks.add(self._places, place, inside, times)

    def _read_memory_if_due(self):
        began_s = monotonic()
        if began_s < self._memory_due:
            return
        size = _own_bytes()
        took_s = monotonic() - began_s
        period_s = looks.rarer(began_s - self._started, _MEMORY_S, _MOST_MEMORY_S)
        self._memory_due = began_s + max(period_s, took_s / _MEMORY_COST)
        if size is not None:
            self._memory.append((transport.unix_ns(int(began_s * 1e9)), size))
            self._look_at_collections(size)

    def _look_at_collections(self, size):
        """What grows in the data set, each time that memory has risen by so much."""
        self._looked_bytes = self._looked_bytes or size
        if size - self._looked_bytes >= _RISE_BYTES or not self._collections.lengths:
            self._looked_bytes = size
            variables = [("dataset", self._dataset)]
            guard.safely(self._collections.look, size, variables, source.place_matching)

    def _flush_if_due(self):
        now_s = monotonic()
        interval_s = looks.rarer(now_s - self._started, _MIN_INTERVAL_S, _MAX_INTERVAL_S)
        if now_s - self._flushed >= interval_s and self._looks:
            self.flush()

    def flush(self):
        """Send what was counted."""
        self._flushed = monotonic()
        counted, self._looks = self._looks, 0
        idle, self._idle = self._idle, 0
        places, self._places = self._places, {}
        memory, self._memory = self._memory, []
        transport.send_apart(
            [
                {
                    "type": "loader_worker",
                    "t_ns": transport.unix_ns(int(self._flushed * 1e9)),
                    "parent": os.getppid(),
                    "worker": self._number,
                    "looks": counted,
                    "idle": idle,
                    "samples": stacks.most_seen(places),
                    "memory_ns": [time_ns for time_ns, _ in memory],
                    "memory_bytes": [size for _, size in memory],
                    **self._collections.told,
                }
            ]
        )

    def end(self):
        """The worker ends: wait for a tick that goes on, as ``injection.thread.stop`` does."""
        self._over = True
        if os.getpid() == self._pid:
            self._ticks.acquire(True, _END_S)
        looks.restore()
        if self._looks and os.getpid() == self._pid:
            self.flush()


def _own_bytes():
    """This process's part of memory with no file behind it; None where Linux does not tell."""
    try:
        rollup = descriptors.read("/proc/self/smaps_rollup", 4096)
    except OSError:
        interrupts.pass_on()
        return None
    _, label, figures = rollup.partition(b"\nPss_Anon:")
    return int(figures.split(None, 1)[0]) * 1024 if label else None


def _below_loop(frame):
    """The frames inside of torch's loop of the worker, innermost first; those of a forked process
    reach back to what started it.
    """
    try:
        stack = frames.still(frame)
    except AttributeError:
        interrupts.pass_on()
        return []
    for depth, still in enumerate(stack):
        code = still.f_code
        if code.co_name == _LOOP and code.co_filename.endswith(_LOOP_FILE):
            return stack[:depth]
    return []


def _waits_for_order(stack):
    """Whether the loop's own call is that of its queue of orders."""
    code = stack[-1].f_code
    return code.co_name == "get" and code.co_filename.endswith("queues.py")
