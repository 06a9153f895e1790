"""The one shared state of the guest.

Everything that more than one module looks at is an attribute of ``S``. The training thread writes, the agent's own
thread reads; what must not be torn is changed under ``S.lock``.
"""

import os
import threading
from time import monotonic_ns
from typing import Any

from . import wire

DATA, H2D, FORWARD, BACKWARD, OPTIMIZER, COMM, EVAL, CHECKPOINT, COMPILE, OTHER = range(len(wire.PHASES))

NOT_ACTIVE = 0  # thread_ident before the first backward or optimizer step
SWITCHED_OFF = -1  # thread_ident after three errors: no thread has it, so every hook passes straight through


class State:
    """Plain attributes; ``reset`` is what a forked child starts from."""

    __slots__ = ("__dict__", "cuda", "last_ns", "manual", "phase", "step", "thread_ident")  # read at every hook

    def __init__(self):
        self.torch: Any = None
        self.errors = 0
        self.undo: Any = []  # callables that put the originals back
        self.skip_code: Any = None  # dynamo's, once it is imported
        self.reset()

    def reset(self):
        """Forget everything that belongs to one process."""
        self.pid = os.getpid()
        self.lock = threading.RLock()  # re-entrant: a user's signal handler may train in the middle of our code
        # -- the training thread
        self.thread_ident = NOT_ACTIVE
        self.native_tid = 0
        self.agent_ident = 0  # of the agent's own thread
        self.step = 0  # index of the step being timed
        self.phase = OTHER  # index into wire.PHASES
        self.phase_at_error: Any = (0, "")  # id of the exception that passed a wrapper last, name of what was wrapped
        self.last_ns = 0  # when the phase began or was last booked
        self.manual = False  # gputop.step() gives the boundaries
        # -- what the run turned out to be
        self.roots: Any = []  # weakrefs to the hooked outermost modules
        self.optimizers: Any = {}  # id -> weakref
        self.ddp: Any = []  # weakrefs to DistributedDataParallel roots
        self.pipeline: Any = None  # what ``hooks.pipelining`` saw of the schedule
        self.want_batch = False  # set: keep the next batch in last_batch
        self.last_batch: Any = None
        self.cuda = False  # CUDA has been initialised by the script
        self.autocast_seen = False
        self.scaler_seen = False
        self.checkpointing_seen = False
        self.compile_seen = False
        self.create_graph_seen = False  # a backward that can itself be differentiated
        self.debug: Any = {}  # aids for finding faults that are on, see ``debugging``
        self.total_steps: Any = None
        self.world_size = _int_from_env("WORLD_SIZE", 1)
        self.rank = _int_from_env("RANK", 0)
        # -- the connection
        self.connected = False
        self.hello_sent = False
        self.dropped = 0  # step records lost so far
        # -- called as f(step, t_end_ns) at every boundary, on the training thread
        self.step_listeners: Any = []


class Lane:
    """Who trains in the fast lane and how long; when to try it again. One object, so that a hook touches only one."""

    __slots__ = (
        "backwards",
        "batch_type",
        "booked",
        "cpu_ns",
        "delta",
        "from_step",
        "ident",
        "iterator_id",
        "marks",
        "most",
        "nested",
        "note",
        "now",
        "optimizer_id",
        "path",
        "probing",
        "record_ns",
        "sampling",
        "settle_ns",
        "settling",
        "thin",
        "thin_from",
        "thin_id",
        "until_ns",
        "vary",
        "version",
    )

    def __init__(self):
        #: monotonic times of fetch, forward, backward and update, their beginnings and ends in turn; eight a step. In
        #: thin steps: beginning and end of the fetch, two a step
        self.marks = []  # an array would take less memory, but touching its code costs a short step 3 us
        self.note = self.marks.append
        self.now = monotonic_ns
        self.ident = NOT_ACTIVE  # of the training thread
        self.iterator_id = 0
        self.optimizer_id = 0
        self.until_ns = 0  # the first fetch after it is asked about: a record ends, or thin steps begin or end
        self.record_ns = 0  # then a record ends
        self.settle_ns = 0  # then the steps are booked, at the end of a record
        self.probing = False  # CPU times are noted too
        self.most = 0  # while fewer batches than that are noted, they leave a shape
        self.batch_type: Any = None  # of the batches that leave a shape
        self.path: Any = ()  # in such a batch, to the tensor whose shape it is
        self.from_step = 0  # not before this one
        self.booked = 0  # the open phase's total when it began
        self.cpu_ns = 0  # the thread's CPU time when the open phase began; 0: not noted
        self.settling = False  # steps are closed that ended some milliseconds ago
        # -- thin steps, see ``thin``
        self.thin = False  # the present step is one
        self.sampling = False  # most steps of the present records are thin
        self.thin_from = 500  # not before this step
        self.vary = False  # batches differ in size, so that each leaves its shape
        self.thin_id = 0  # id of the iterator whose fetches only leave their times; 0: none
        self.nested = False  # a backward was seen inside another one: counted, they could not be told apart
        self.backwards = 0  # that thin steps had seen when the present stretch of steps began
        self.version = 0  # of a trained parameter when the present stretch of steps began
        self.delta = 0  # by so much an update raises it; 0: not known


def _int_from_env(name, default):
    try:
        return int(os.environ.get(name, ""))
    except ValueError:
        return default


S = State()
L = Lane()
