"""A few steps under torch.profiler, on command: started and stopped by the training thread,
evaluated beside it.

Starting, stopping and evaluating take milliseconds to seconds and slow the steps around them, so
every step from the first to the end of the evaluation carries ``F_AGENT``: none of them counts in
the run's statistics.
"""

import os
import sys
import threading
from typing import Any

from gputop_agent import wire
from gputop_agent.runtime import interrupts, transport
from gputop_agent.runtime.session import session
from gputop_agent.timing.step_state import open_step
from gputop_agent.watchers.stacks import rivals

_MAX_STEPS = 100
_ROWS = 40
_KINETO_LEVEL = "KINETO_LOG_LEVEL"
_EXIT_WAIT_S = 20.0  # at the process's end, for an evaluation that is under way


class _Profiler:
    """The profile that is being taken."""

    def __init__(self):
        self.burst: Any = None


_profiler = _Profiler()


def request(command):
    """Profile ``command["steps"]`` steps from the next boundary on; the result is one ``profile``
    event.

    ``command["trace_dir"]``: where to write a chrome trace as well. A second request while one runs
    is refused.
    """
    if _profiler.burst is not None:
        transport.send_event("profile", steps=0, table=[], error="a profile is being taken already")
        return
    count = command.get("steps")
    count = max(1, min(_MAX_STEPS, count if isinstance(count, int) else 3))
    _profiler.burst = Burst(count, command.get("trace_dir"))
    session.step_listeners.append(_profiler.burst.on_step_closed)


def is_active():
    """Whether the profiler that runs, if one does, is ours."""
    return _profiler.burst is not None


def finish():
    """At the process's end: stop a profile that runs, and wait for its evaluation.

    A thread that is still in the profiler's C++ code while the interpreter goes would take the exit
    code with it.
    """
    burst = _profiler.burst
    if burst is not None:
        burst.finish()


@session.after_fork
def reset():
    """Forget the parent's profile (called in a fork's child)."""
    _profiler.burst = None


class Burst:
    """One run of the profiler over a number of steps."""

    _profile: Any = None
    _mark: Any = None
    _thread: Any = None

    def __init__(self, count, trace_dir=None):
        self._left = count
        self._trace_dir = trace_dir
        self._first = -1
        self._done = 0

    def on_step_closed(self, step, *_):
        """Called by the training thread at each boundary: starts the profiler, counts, stops it,
        then waits.
        """
        try:
            if self._thread is None:
                _booked(self._next, step)
        except Exception as error:
            interrupts.pass_on()
            self._abandon()
            _report_failure(error)
        open_step.flags |= wire.F_AGENT

    def finish(self):
        """See the function of this name."""
        if self._thread is None and self._profile is not None:
            self._stop()
        if self._thread is not None:
            self._thread.join(_EXIT_WAIT_S)

    def _next(self, step):
        if self._profile is None:
            self._start(step + 1)
            return
        self._mark.__exit__(None, None, None)
        self._mark = None
        self._done += 1
        self._left -= 1
        if self._left > 0:
            self._mark_step(step + 1)
        else:
            self._stop()

    def _start(self, step):
        torch = sys.modules["torch"]
        if getattr(torch.autograd.profiler, "_is_profiler_enabled", False):
            raise RuntimeError("the training runs a profiler of its own")
        kinds = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_initialized():
            kinds.append(torch.profiler.ProfilerActivity.CUDA)
        profile = torch.profiler.profile(activities=kinds)
        with _QuietKineto():
            profile.start()
        self._profile, self._first = profile, step
        self._mark_step(step)

    def _mark_step(self, step):
        """The annotation of torch.profiler's own ``step()``; readers of the trace go by it."""
        self._mark = sys.modules["torch"].profiler.record_function("ProfilerStep#%d" % step)
        self._mark.__enter__()

    def _stop(self):
        if self._mark is not None:  # in the middle of a step: the process ends
            self._mark.__exit__(None, None, None)
        self._profile.stop()
        self._thread = threading.Thread(target=self._report, name=rivals.OWN_NAME, daemon=True)
        self._thread.start()

    def _abandon(self):
        profile, self._profile = self._profile, None
        self._end()
        if profile is not None:
            try:
                profile.stop()
            except Exception:  # it was stopped, or never ran
                interrupts.pass_on()

    def _end(self):
        _profiler.burst = None
        if self.on_step_closed in session.step_listeners:
            session.step_listeners.remove(self.on_step_closed)

    def _report(self):
        try:
            path = self._write_trace()
            rows = table(self._profile.key_averages())
            transport.send_event(
                "profile", steps=self._done, first_step=self._first, table=rows, trace_path=path
            )
        except Exception as error:
            interrupts.pass_on()
            _report_failure(error)
        finally:
            self._end()

    def _write_trace(self):
        """The chrome trace, named when it is whole. Returns its path, None without a directory."""
        if not self._trace_dir:
            return None
        os.makedirs(self._trace_dir, exist_ok=True)
        path = os.path.join(
            self._trace_dir, "rank-%05d-step-%d.trace.json" % (session.rank, self._first)
        )
        part = path[: -len(".json")] + ".part"
        self._profile.export_chrome_trace(part)
        os.replace(part, path)
        return path


def _booked(function, *args):
    """``function(*args)``, booked as our own time; raises what the function raises."""
    from gputop_agent.timing import steps

    failure = []

    def guarded():
        try:
            function(*args)
        except Exception as error:
            interrupts.pass_on()
            failure.append(error)

    steps.book_agent_time(guarded)
    if failure:
        raise failure[0]


class _QuietKineto:
    """Kineto reads its log level when it is first used, and from torch 2.13 on writes two lines to
    stderr a profile.

    The variable is put back at once. Where the training has profiled before us, the level stays
    what it was.
    """

    def __enter__(self):
        self._before = os.environ.get(_KINETO_LEVEL)
        os.environ[_KINETO_LEVEL] = "6"  # above ERROR (4) and USDT (5)

    def __exit__(self, *exception):
        if self._before is None:
            os.environ.pop(_KINETO_LEVEL, None)
        else:
            os.environ[_KINETO_LEVEL] = self._before


def table(averages):
    """``[{op, calls, cpu_ms, device_ms}]``: self times over profiled steps, largest first."""
    rows = [
        {
            "op": str(row.key)[:120],
            "calls": int(row.count),
            "cpu_ms": round(row.self_cpu_time_total / 1e3, 4),
            "device_ms": round(_device_us(row) / 1e3, 4),
        }
        for row in averages
        if not str(row.key).startswith("ProfilerStep")  # our own marks
    ]
    return sorted(rows, key=lambda row: -max(row["cpu_ms"], row["device_ms"]))[:_ROWS]


def _device_us(row):
    microseconds = getattr(row, "self_device_time_total", None)
    # before torch 2.4
    if microseconds is not None:
        return microseconds
    return getattr(row, "self_cuda_time_total", 0)


def _report_failure(error):
    transport.send_event(
        "profile", steps=0, table=[], error="%s: %s" % (type(error).__name__, error)
    )
