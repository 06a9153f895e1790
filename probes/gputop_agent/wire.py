"""What travels from a training process to the recorder, and lies in the record on disk.

One SEQPACKET message is one kind byte and a payload. Fixed-width structs are little-endian and
packed; the tables below are the only definition of them: the agent packs with ``struct``, readers
map the same bytes with NumPy.

Times called ``t_*_ns`` are nanoseconds since the Unix epoch, made from the monotonic clock and one
offset per host (``GPUTOP_CLOCK_OFFSET_NS``, set by the recorder), so that all ranks of a host share
one clock and durations stay exact.
"""

import struct

# ---- environment that the launcher hands to the training process
ENV_SOCKET = "GPUTOP_SOCKET"  # path of the recorder's Unix socket
ENV_AGENT_DIR = "GPUTOP_AGENT_DIR"  # directory of the gputop_agent package
ENV_RUN_ID = "GPUTOP_RUN_ID"  # marks every process of a run (read back from /proc/PID/environ)
ENV_CLOCK_OFFSET = "GPUTOP_CLOCK_OFFSET_NS"  # time.time_ns() - time.monotonic_ns() of the recorder
ENV_TRANSPORT = "GPUTOP_TRANSPORT"  # "stream": length-prefixed STREAM instead of SEQPACKET
ENV_DISABLE = "GPUTOP_DISABLE"  # "1": the agent stays out
ENV_COUNT_FLOPS = "GPUTOP_COUNT_FLOPS"  # "1": count the floating-point operations of one step
ENV_LAYERS = "GPUTOP_LAYERS"  # "1": single steps are watched layer by layer
ENV_WATCH_NUMERICS = "GPUTOP_WATCH_NUMERICS"  # "1": each step is watched for NaN
ENV_MEMORY_HISTORY = "GPUTOP_MEMORY_HISTORY"  # folder of snapshots: CUDA's allocator is recorded
ENV_DRYRUN_STEPS = "GPUTOP_DRYRUN_STEPS"  # a number: the training ends after so many steps
# a number: models of transformers are cut to so many layers
ENV_DRYRUN_LAYERS = "GPUTOP_DRYRUN_LAYERS"
ENV_DEBUG = "GPUTOP_AGENT_DEBUG"  # a file path: the agent's own tracebacks are appended there

# ---- exceptions by which launchers say that a rank has failed: the rank's own is the cause
LAUNCHERS_ERRORS = (
    "CalledProcessError",
    "ChildFailedError",
    "ProcessExitedException",
    "ProcessRaisedException",
    "SignalException",
)

# ---- messages: first byte of each datagram
MSG_STEPS = b"S"  # then n packed STEP structs
MSG_DEVICE = b"D"  # then n packed DEVICE structs (device clock, resolved some steps later)
MSG_COMM = b"C"  # then n packed COMM structs
MSG_EVENT = b"E"  # then one JSON object (UTF-8) with at least "type" and "t_ns"
MSG_COMMAND = b"X"  # recorder -> agent, or a client -> recorder: one JSON object with "cmd"
MAX_MESSAGE_BYTES = 128 * 1024  # larger events are split or cut by the agent
#: A buffer of 128 KiB would be mapped and unmapped for each look, which stops all threads.
MAX_COMMAND_BYTES = 16 * 1024
MAX_RANK = 1_000_000  # what is above was given by no launcher

# ---- phases: the exclusive parts of a step; they add up to its wall time exactly
PHASES = (
    "data",
    "h2d",
    "forward",
    "backward",
    "optimizer",
    "comm",
    "eval",
    "checkpoint",
    "compile",
    "other",
)

# ---- one record per step, or per n folded steps: durations, counts and byte sums are sums over the
# n steps
STEP_FIELDS = (
    ("t_end_ns", "q"),  # when the last of the steps ended
    ("wall_ns", "q"),  # = sum of the ten phases below, to the nanosecond
    ("data_ns", "q"),
    ("h2d_ns", "q"),
    ("forward_ns", "q"),
    ("backward_ns", "q"),
    ("optimizer_ns", "q"),
    ("comm_ns", "q"),  # synchronous collectives called from Python
    ("eval_ns", "q"),
    ("checkpoint_ns", "q"),
    ("compile_ns", "q"),
    ("other_ns", "q"),
    ("wall_max_ns", "q"),  # the longest single step among the n
    ("cpu_ns", "q"),  # CPU time of the training thread; -1: not measured
    ("compute_cpu_ns", "q"),  # the same inside forward and backward only; -1: not measured
    ("gc_ns", "q"),  # Python's garbage collector (lies inside the phases, not beside them)
    # gputop's own one-off work, such as finding the root modules (inside "other")
    ("agent_ns", "q"),
    ("allocated_bytes", "q"),  # torch.cuda.memory_allocated at the step's end; -1: no CUDA
    ("reserved_bytes", "q"),
    # peak of this step where it can be had without resetting the user's statistics
    ("peak_allocated_bytes", "q"),
    ("rss_bytes", "q"),  # resident set of the process; -1: not measured
    # mean over micro-batches of the last step, see F_LOSS_EARLIER; NaN: not known (on CUDA: DEVICE)
    ("loss", "d"),
    ("loss_max", "d"),  # the largest loss of the n steps, so that folding hides no spike
    # what clip_grad_norm_ returned last (the largest, if it is 4 times that); NaN: not known
    ("grad_norm", "f"),
    ("lr", "f"),
    ("loss_scale", "f"),
    ("step", "I"),  # index of the last step in this record, from 0, per process
    ("n_steps", "I"),
    ("samples", "I"),
    ("tokens", "I"),
    ("micro_batches", "I"),
    ("optimizer_steps", "I"),
    ("flags", "I"),  # OR over the n steps of the F_ bits
    ("dropped", "I"),  # records lost so far because the recorder did not read
    ("batch_crc", "I"),  # fingerprint of the batch; 0: not measured
)

F_COMPILE = 1
F_CHECKPOINT = 2
F_EVAL = 4
F_SCALER_SKIP = 8  # GradScaler skipped the update
F_OPT_IN_BACKWARD = 16
# the boundary was inferred: no optimizer hook fired (compiled or hand-written update)
F_NO_OPT_EVENT = 32
F_NO_FORWARD = 64  # no forward of a known root module was seen
F_NONFINITE = 128  # a loss of these steps was NaN or infinite
F_FIRST = 256  # first step of the process: contains set-up
F_AGENT = 512  # gputop did one-off work in it (agent_ns)
F_MANUAL = 1024  # boundary given by gputop.step()
# 2048 is free
F_LOSS_EARLIER = 4096  # the loss is that of an earlier one of the n steps (older records)
F_WINDOW = 8192  # the hooks were in for these steps only, and out before and after
# steps were counted: phases, samples and tokens are estimates from windows; wall time is exact
F_ESTIMATED = 16384

#: flags whose steps are left out of steady-state statistics
F_UNSTEADY = F_COMPILE | F_CHECKPOINT | F_EVAL | F_FIRST | F_AGENT

#: a record of fast steps ends with the first one after so long: of those measured, and counted
FOLD_NS, BOOK_NS = 20_000_000, 50_000_000

# ---- device clock (CUDA events), one record per resolved step; milliseconds, NaN: not measured
DEVICE_FIELDS = (
    ("t_end_ns", "q"),  # host time of the step's end
    ("loss", "d"),  # resolved late; NaN: not known
    ("data_ms", "f"),
    ("h2d_ms", "f"),
    ("forward_ms", "f"),
    ("backward_ms", "f"),
    ("optimizer_ms", "f"),
    ("other_ms", "f"),
    ("total_ms", "f"),
    ("grad_norm", "f"),
    ("step", "I"),
    ("flags", "I"),
)

# ---- communication of one step, from DDP's own logging data or from collectives' arrival times
COMM_DDP = 0
COMM_FIELDS = (
    ("t_end_ns", "q"),
    ("forward_ns", "q"),  # DDP's forward compute time
    ("backward_compute_ns", "q"),
    ("backward_comm_ns", "q"),  # first bucket launched to last all-reduce done
    ("overlap_ns", "q"),  # the part of it that ran beside backward compute
    ("wait_ns", "q"),  # exposed: backward_comm - overlap, or waiting for the last rank to arrive
    ("step", "I"),
    ("source", "I"),  # COMM_DDP: DDP's logging data
)


def _struct(fields):
    return struct.Struct("<" + "".join(code for _, code in fields))


STEP = _struct(STEP_FIELDS)
DEVICE = _struct(DEVICE_FIELDS)
COMM = _struct(COMM_FIELDS)
