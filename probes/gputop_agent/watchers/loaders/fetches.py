"""What the DataLoader is doing, looked at from the agent's thread, so that a fetch costs the
training nothing more.

A look counts the batches that lie ready and, where the training is inside a fetch, says what it
waits for. The one thing that the hooks note is the beginning of an epoch, which is rare.
"""

import sys
from time import monotonic
from typing import Any

from gputop_agent.runtime import (
    current,
    descriptors,
    frames,
    interrupts,
    living,
    looks,
    transport,
)
from gputop_agent.runtime.session import DATA, session
from gputop_agent.timing import batch
from gputop_agent.watchers.loaders import padded_at

_MIN_INTERVAL_S, _MAX_INTERVAL_S = 2.0, 30.0
_MAX_LOADERS = 8
_MAX_EPOCHS = 16  # an event tells so many one by one
_KEY = ("dataset", "dataset_length", "batch_size", "num_workers", "prefetch_factor")

#: what is read of torch's iterator; where another version has other names, nothing is looked at
_PARTS = frozenset(
    (
        "_task_info",
        "_rcvd_idx",
        "_tasks_outstanding",
        "_prefetch_factor",
        "_num_workers",
        "_data_queue",
        "_workers",
    )
)

#: reference to the iterator that the training fetches from -> (key, its attributes, which are let
#: go when it goes)
_watched = {}


class _Current:
    """The loader that the training fetches from."""

    def __init__(self):
        #: id of the iterator that the training fetches from, and the key of its loader
        self.training: "tuple[int, Any]" = (0, None)
        #: id of an iterator that was made and not yet fetched from, and how long the making took
        self.made: "tuple[int, int]" = (0, 0)
        #: how long the fetch took that found no more batches: it shuts the workers down
        self.ended_ns = 0


_current = _Current()
_epochs = []  # (key, step, end_ns, start_ns, first_ns), at most so many between two events
_sums = {}  # key -> [epochs, end_ns + start_ns, first_ns] since the last event


def watch(iterator, loader):
    """Training fetches from ``iterator`` now; ``loader`` describes it, None for evaluation."""
    _watched.clear()
    parts = vars(iterator)
    if loader is not None:
        key = tuple(loader.get(name) for name in _KEY)
    else:
        key = None
    _current.training = (id(iterator), key)
    if key is not None and _PARTS.issubset(parts):
        _watched[living.Reference(iterator, _watched.pop)] = key, parts


def _watched_now():
    """``(key, attributes)`` of the iterator, None without one; from either thread."""
    return next(iter(list(_watched.values())), None)


def iterator_made(iterator, spent_ns):
    """An epoch begins."""
    _current.made = (id(iterator), spent_ns)


def iterator_exhausted(iterator, spent_ns):
    """A fetch found no more batches."""
    if _current.training[0] == id(iterator):
        _current.ended_ns = spent_ns


def first_fetch(iterator, spent_ns):
    """Training changed over to ``iterator``: note an epoch's begin if it is new."""
    creation, start_ns = _current.made
    key = _current.training[1]
    if creation == id(iterator) and key is not None:
        if len(_epochs) < _MAX_EPOCHS * _MAX_LOADERS:
            _epochs.append((key, session.step, _current.ended_ns, start_ns, spent_ns))
        if key in _sums or len(_sums) < _MAX_LOADERS:
            total = _sums.setdefault(key, [0, 0, 0])
            total[0] += 1
            total[1] += _current.ended_ns + start_ns
            total[2] += spent_ns
        _current.ended_ns = 0
    _current.made = (0, 0)


@session.after_fork
def reset():
    """In a forked child."""
    _watched.clear()
    _current.training, _current.made, _current.ended_ns = (0, None), (0, 0), 0
    del _epochs[:]
    _sums.clear()


class Counts:
    """Looks at one loader since the last event."""

    def __init__(self):
        self.looks = 0
        self.empty = 0  # no batch lay ready
        self.fetching = 0  # the training was inside a fetch
        self.behind = 0  # ... and waited for one worker, although later batches were there
        self.unpacking = 0  # ... and was rebuilding a batch that had arrived
        self.waited_for = {}  # worker -> looks of ``behind``
        # of the worker that makes the batch that is waited for, as in /proc -> looks
        self.states = {}


class FetchWatch:
    """Looks once a tick; sends a ``loader`` event a loader, every 2 s, later less often."""

    def __init__(self):
        self._counts = {}
        self._started = self._flushed = monotonic()

    def look(self):
        """Count the state of the moment."""
        watched = _watched_now()
        if watched is None:
            return
        key, parts = watched
        tasks = list(parts["_task_info"].items())
        stored = {index for index, task in tasks if len(task) == 2}  # arrived out of turn
        ready, turn = _ready(parts), parts["_rcvd_idx"]
        outstanding = parts["_tasks_outstanding"] + len(stored)
        if (
            ready is None
            or not turn
            or outstanding < parts["_prefetch_factor"] * parts["_num_workers"]
        ):
            return  # at the ends of an epoch the queue is empty by nature
        counts = self._counts.get(key)
        if counts is None:
            if len(self._counts) >= _MAX_LOADERS:
                return
            counts = self._counts[key] = Counts()
        frame = sys._current_frames().get(session.thread_ident)
        fetching = current.phase(frame) == DATA
        unpacking = fetching and _is_unpacking(frame)
        waiting = fetching and not unpacking and turn not in stored
        counts.looks += 1
        counts.fetching += fetching
        counts.unpacking += unpacking
        counts.empty += waiting or (not ready and turn not in stored)
        task = dict(tasks).get(turn) if waiting else None
        if task is not None:
            _count(counts.states, _state(parts["_workers"][task[0]].pid))
            if stored:
                counts.behind += 1
                _count(counts.waited_for, task[0])

    def flush_if_due(self):
        """Send what was counted, if it is time."""
        now_s = monotonic()
        interval_s = looks.rarer(now_s - self._started, _MIN_INTERVAL_S, _MAX_INTERVAL_S)
        if now_s - self._flushed >= interval_s:
            self.flush()

    def flush(self):
        """Send what was counted."""
        self._flushed = monotonic()
        counted, self._counts = self._counts, {}
        epochs = _epochs[:]
        del _epochs[: len(epochs)]
        sums = {key: _sums.pop(key) for key in list(_sums)}
        for key in set(counted).union(sums):
            counts, own_counts = (
                counted.get(key) or Counts(),
                [epoch[1:] for epoch in epochs if epoch[0] == key],
            )
            begun, start_ns, first_ns = sums.get(key, (0, 0, 0))
            transport.send_event(
                "loader",
                **dict(zip(_KEY, key)),
                looks=counts.looks,
                empty=counts.empty,
                fetching=counts.fetching,
                behind=counts.behind,
                unpacking=counts.unpacking,
                states=counts.states,
                waited_for=[
                    {"worker": worker, "looks": n}
                    for worker, n in sorted(counts.waited_for.items())
                ],
                epochs=begun,
                starts_ms=round(start_ns / 1e6, 3),
                firsts_ms=round(first_ns / 1e6, 3),
                epoch_starts=[_epoch(*epoch) for epoch in own_counts[:_MAX_EPOCHS]],
            )
        padding = batch.take_padding()
        if padding:
            transport.send_event("padding", **padding, **padded_at.fields())
        repeats = batch.take_repeats()
        if repeats:
            transport.send_event("repeats", **repeats)


def _epoch(step, end_ns, start_ns, first_ns):
    return {
        "step": step,
        "end_ms": round(end_ns / 1e6, 3),
        "start_ms": round(start_ns / 1e6, 3),
        "first_ms": round(first_ns / 1e6, 3),
    }


def _count(counts, key):
    counts[key] = counts.get(key, 0) + 1


def _state(pid):
    """``R``: it computes, or would with a core; ``D``: storage; ``S``: for anything else."""
    try:
        return descriptors.read("/proc/%d/stat" % pid, 512).rpartition(b")")[2].split()[0].decode()
    except (OSError, IndexError, TypeError):
        interrupts.pass_on()
        return "?"


def _ready(parts):
    """Batches that wait in the queue; None where that cannot be known without a lock (macOS)."""
    queue = parts["_data_queue"]
    if hasattr(queue, "queue"):  # a thread pins the batches and puts them here
        return len(queue.queue)
    try:
        return queue.qsize()  # reads a semaphore
    except NotImplementedError:
        interrupts.pass_on()
        return None


def _is_unpacking(frame):
    """Whether the stack is in a queue's ``get`` but neither polls nor receives: it unpickles."""
    inner = None
    for frame_ in frames.stack(frame, 24):
        name = frame_.f_code.co_filename
        if frame_.f_code.co_name == "get" and name.endswith("queues.py"):
            return inner is None or not inner.endswith("connection.py")
        inner = name
    return False
