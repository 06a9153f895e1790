"""The one shared state of the guest.

Everything that more than one module looks at is an attribute of ``session``. The training thread
writes, the agent's own thread reads; what must not be torn is changed under ``session.lock``.
"""

import os
import threading
from typing import Any

from gputop_agent import wire

DATA, H2D, FORWARD, BACKWARD, OPTIMIZER, COMM, EVAL, CHECKPOINT, COMPILE, OTHER = range(
    len(wire.PHASES)
)

# between two windows, see ``sampling``: whatever no hook that stays in measures
UNMEASURED = OTHER + 1

NOT_ACTIVE = 0  # thread_ident before the first backward or optimizer step
# thread_ident after three errors: no thread has it, so every hook passes straight through
SWITCHED_OFF = -1


class Session:
    """Plain attributes; ``reset`` is what a forked child starts from."""

    #: read at every hook
    __slots__ = (
        "__dict__",
        "cuda",
        "hook_ns",
        "hooks_out",
        "last_ns",
        "manual",
        "phase",
        "step",
        "thread_ident",
    )

    def __init__(self):
        self.torch: Any = None
        self.errors = 0
        self.excepthooks_chained = False
        self.ended_pid = 0  # of the process that has sent its goodbye
        self.undo: Any = []  # callables that put the originals back
        # what is taken out between two windows: has ``put_in`` and ``take_out``
        self.removable: Any = []
        self.skip_code: Any = None  # dynamo's, once it is imported
        self.resets: Any = []  # of modules with state of their own, in the order of their imports
        self.reset()

    def after_fork(self, reset):
        """Decorate the function that starts a module from zero in a forked child."""
        self.resets.append(reset)
        return reset

    def reset(self):
        """Forget everything that belongs to one process."""
        self.pid = os.getpid()
        # re-entrant: a user's signal handler may train in the middle of our code
        self.lock = threading.RLock()
        # -- the training thread
        self.thread_ident = NOT_ACTIVE
        self.native_tid = 0
        self.agent_ident = 0  # of the agent's own thread
        self.step = 0  # index of the step being timed
        self.phase = OTHER  # index into wire.PHASES, or UNMEASURED
        self.hooks_out = False  # steps are only counted, see ``sampling``
        # monotonic nanoseconds of the steps that were counted and not booked yet
        self.update_times: Any = []
        # id of the exception that passed a wrapper last, name of what was wrapped
        self.passed_error: Any = (0, "")
        # step, name of what was wrapped and time_ns of the first RuntimeError that passed in it
        self.failure: Any = (-1, "", 0)
        self.last_ns = 0  # when the phase began or was last booked
        self.hook_ns = 0  # spent between the first and the last line of hooks, by their own clock
        self.manual = False  # gputop.step() gives the boundaries
        # -- what the run turned out to be
        self.roots: Any = []  # weakrefs to the hooked outermost modules
        self.untrained: Any = []  # weakrefs to modules that no optimizer has parameters of
        self.optimizers: Any = {}  # id -> weakref
        self.ddp: Any = []  # weakrefs to DistributedDataParallel roots
        self.pipeline: Any = None  # what ``hooks.pipelining`` saw of the schedule
        self.cuda = False  # CUDA has been initialised by the script
        self.autocast_seen = False
        self.autocast_looks = 0
        self.scaler_seen = False
        self.checkpointing_seen = False
        # without gradients, of a network in training mode: a policy, a target
        self.soft_forwards = 0
        self.beginnings = 0  # first updates of optimizers
        self.forwards_for_gradients = 0
        self.compile_seen = False
        self.gradients_scaled = False  # by a GradScaler, and not unscaled yet
        self.clips = 0  # calls of ``clip_grad_norm_`` with a limit
        self.clips_scaled = 0  # of them, those that found gradients scaled
        self.clips_late = 0  # and those after the only optimizer's update had used the gradients
        self.clip_max_norm: Any = None  # the limit that ``clip_grad_norm_`` was last called with
        self.clip_site: Any = None  # the line that called it
        self.nested_update_seen = False  # an optimizer's step that calls a step
        self.engine_seen = False  # a trainer's engine or schedule gives the boundaries
        self.phases_named = False  # gputop.phase() was called
        self.exchange_seen = False  # ranks gave each other tensors, as in tensor parallelism
        self.create_graph_seen = False  # a backward that can itself be differentiated
        self.graph_by_backward_seen = False  # by backward(), and not autograd.grad() alone
        # gradients of weights whose graph they use up, as of an inner update of first-order MAML
        self.inner_gradients_seen = False
        self.trains_on_drawn = False  # texts that the network has drawn itself
        self.meta_gradients_seen = False  # the same with respect to weights, as in MAML
        self.derivatives_seen = False  # several such before one backward, as in a PINN's loss
        self.debug: Any = {}  # aids for finding faults that are on, see ``debugging``
        self.total_steps: Any = None
        self.world_size = _int_from_env("WORLD_SIZE", 1)
        self.rank = _int_from_env("RANK", 0)
        # -- the connection
        self.connected = False
        self.hello_sent = False
        self.dropped = 0  # step records lost so far
        # -- called as f(step, t_end_ns) on the training thread
        self.step_listeners: Any = []  # at every boundary: while there are any, all hooks stay in
        # at boundaries, also between two windows, where some are passed over
        self.boundary_listeners: Any = []


def _int_from_env(name, default):
    try:
        return int(os.environ.get(name, ""))
    except ValueError:
        return default


session = Session()
