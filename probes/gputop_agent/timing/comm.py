"""What DDP measures about its own communication, turned into one COMM record a sampled step.

DDP times the first all-reduce launched, the last one done and the end of backward's compute, on
every n-th iteration. On CPU the timer is a clock read, so it may run on every iteration that we
want to see; on CUDA reading the timer synchronises with the device at the next forward
(``CudaTimer::measureDifference``), so DDP's own 1 in 100 stays.

The data of an iteration is complete at the next forward. It carries the wall-clock time of its
events, and those decide which step it belongs to.
"""

from collections import deque

from gputop_agent import wire
from gputop_agent.runtime import transport
from gputop_agent.runtime.living import alive
from gputop_agent.runtime.session import session

_PERIOD_NS = 50_000_000  # at most 20 reads a second or one a step, 10-30 us each
_OWN_RATE = 100  # DDP measures one iteration in so many
_MAX_STRIDE = 1024
_RECENT_STEPS = 16
_FIRST_REPORT = 16
_KEPT_STEPS = 2 * _MAX_STRIDE

_watched = {}  # id of a DDP root -> Watch
_steps = deque(maxlen=_KEPT_STEPS)  # (step, t_end_ns) of the last steps


class _Sampling:
    """How often DDP is read."""

    def __init__(self):
        self.stride = 1  # steps from reading to reading: a power of two, the same on all ranks


_sampling = _Sampling()


def on_step_closed(step, t_end_ns):
    """Remember when the step ended; at times read what DDP has measured. Free without DDP."""
    if not session.ddp:
        return
    on_steps_counted(step, (t_end_ns,))


def on_steps_counted(first, t_ends_ns):
    """Remember when steps from index ``first`` ended; read if it was time at one of them."""
    steps = range(first, first + len(t_ends_ns))
    _steps.extend(zip(steps, t_ends_ns))
    if not any(step % _sampling.stride == 0 for step in steps):
        return
    _sampling.stride = stride(_mean_step_ns())
    for root in alive(session.ddp):
        _watch(root).read(root, max(1, _sampling.stride // 2))


@session.after_fork
def reset():
    """Forget the parent's roots (called in a fork's child)."""
    _watched.clear()
    _steps.clear()
    _sampling.__init__()


def stride(step_ns):
    """The least power of two of steps to take 50 ms; ranks one power apart share every other."""
    steps = 1
    while steps * step_ns < _PERIOD_NS and steps < _MAX_STRIDE:
        steps *= 2
    return steps


def describe_ddp(root):
    """DDP's settings, its bucket sizes in bytes and the size of its unused parameters."""
    data = root.logger._get_ddp_logging_data()
    ints, strs = data.ints_map, data.strs_map
    sizes = strs.get("rebuilt_bucket_sizes") or strs.get("bucket_sizes") or ""
    return {
        "backend": strs.get("backend_name"),
        "bucket_cap_bytes": ints.get("bucket_cap_bytes"),
        "bucket_bytes": [int(size) for size in sizes.split(",")[:256] if size.strip().isdigit()],
        "find_unused_parameters": bool(ints.get("find_unused_parameters")),
        "unused_parameter_bytes": ints.get("unused_parameter_size"),
        "static_graph": bool(ints.get("static_graph")),
        "gradient_as_bucket_view": bool(ints.get("gradient_as_bucket_view")),
        "broadcast_buffers": bool(ints.get("broadcast_buffers")),
        "comm_hook": strs.get("comm_hook") or None,
        "sync_batch_norm": bool(ints.get("has_sync_bn")),
        "parameter_bytes": ints.get("total_parameter_size_bytes"),
        "parameter_tensors": ints.get("num_parameter_tensors"),
    }


def _watch(root):
    watch = _watched.get(id(root))
    if watch is None:
        watch = _watched[id(root)] = CommWatch(_on_cpu(root))
    return watch


def _on_cpu(root):
    device = getattr(root, "device", None)
    return getattr(device, "type", None) == "cpu"


def _mean_step_ns():
    if len(_steps) < 2:
        return _PERIOD_NS
    (first, t0), (last, t1) = _steps[-min(len(_steps), _RECENT_STEPS)], _steps[-1]
    return max(1, (t1 - t0) // max(1, last - first))


class CommWatch:
    """One DDP module: at which rate it measures, and what was read from it last."""

    def __init__(self, on_cpu):
        """``on_cpu``: its timer costs nothing, so the rate may be set."""
        self.on_cpu = on_cpu
        self.rate = _OWN_RATE
        self.last_iteration = -1
        self.announced = 0
        self.unused_bytes = 0
        self.report_at = _FIRST_REPORT

    def read(self, root, rate):
        """Send the newest measurement, if not sent yet; on CPU measure every ``rate``-th."""
        if self.on_cpu and rate != self.rate:
            root._set_ddp_runtime_logging_sample_rate(rate)
            self.rate = rate
        data = root.logger._get_ddp_logging_data().ints_map
        iteration = data.get("iteration", 0)
        if iteration > 0 and iteration != self.last_iteration:
            self.last_iteration = iteration
            self._send(data)
        self.unused_bytes = max(self.unused_bytes, data.get("unused_parameter_size", 0))
        self._announce(root, data)
        self._report(data)

    def _send(self, data):
        comm = data.get("backward_comm_time", 0)
        overlap = data.get("backward_compute_comm_overlap_time", 0)
        ended_ns = data.get("backward_comm_time_end", 0)
        if comm <= 0 or ended_ns <= 0:  # a no_sync iteration
            return
        step, t_end_ns = step_at(_steps, ended_ns)
        transport.send_records(
            wire.MSG_COMM,
            wire.COMM.pack(
                t_end_ns,
                data.get("forward_compute_time", 0),
                data.get("backward_compute_time", 0),
                comm,
                overlap,
                max(0, comm - max(0, overlap)),
                step & 0xFFFFFFFF,
                wire.COMM_DDP,
            ),
        )

    def _announce(self, root, data):
        """Say what DDP's settings are: at the start, and once the buckets have been rebuilt."""
        stage = 2 if data.get("has_rebuilt_buckets") else 1
        if self.announced < stage:
            self.announced = stage
            transport.send_event("ddp", **describe_ddp(root))

    def _report(self, data):
        """Say at 16, 32, ... steps how many iterations synchronised, and if parameters lay idle."""
        step = _steps[-1][0]
        if step >= self.report_at:
            while self.report_at <= step:
                self.report_at *= 2
            transport.send_event(
                "ddp_progress",
                step=step,
                iterations=data.get("iteration", 0),
                unused_parameter_bytes=self.unused_bytes,
            )


def step_at(steps, t_ns):
    """The ``(step, t_end_ns)`` in which ``t_ns`` lies: the first that ended after, or the last."""
    step = steps[-1]
    for entry in reversed(steps):
        if entry[1] < t_ns:
            break
        step = entry
    return step
