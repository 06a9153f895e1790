"""A few steps under torch.profiler, on command: started and stopped by the training thread, evaluated beside it."""

import os
import sys
import threading
from typing import Any

from . import transport
from .state import S

_MAX_STEPS = 50
_ROWS = 40
_KINETO_LEVEL = "KINETO_LOG_LEVEL"

_active = None


def request(command):
    """Profile ``command["steps"]`` steps from the next boundary on; the result is one ``profile`` event.

    ``command["trace_path"]``: where to write a Chrome trace as well. A second request while one runs is refused.
    """
    global _active
    if _active is not None:
        transport.send_event("profile", steps=0, table=[], error="a profile is being taken already")
        return
    steps = command.get("steps")
    steps = max(1, min(_MAX_STEPS, steps if isinstance(steps, int) else 3))
    _active = Burst(steps, command.get("trace_path"))
    S.step_listeners.append(_active.on_step_closed)


def is_active():
    """Whether torch's profiler runs, or soon will, because we were asked to."""
    return _active is not None


def reset():
    """Forget the parent's profile (called in a fork's child)."""
    global _active
    _active = None


class Burst:
    """One run of the profiler over a number of steps."""

    _profile: Any = None

    def __init__(self, steps, trace_path=None):
        self._steps = steps
        self._left = steps
        self._trace_path = trace_path
        self._first = -1

    def on_step_closed(self, step, *_):
        """Called by the training thread at each boundary: starts the profiler, counts, stops it."""
        try:
            if self._profile is None:
                self._start(step)
                return
            self._left -= 1
            if self._left <= 0:
                self._stop()
        except Exception as error:
            self._end()
            _report_failure(error)

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
        self._profile, self._first = profile, step + 1

    def _stop(self):
        profile = self._profile
        self._end()
        profile.stop()
        threading.Thread(target=self._report, args=(profile,), name="gputop-profile", daemon=True).start()

    def _end(self):
        global _active
        _active = None
        if self.on_step_closed in S.step_listeners:
            S.step_listeners.remove(self.on_step_closed)

    def _report(self, profile):
        try:
            rows = table(profile.key_averages())
            if self._trace_path:
                profile.export_chrome_trace(self._trace_path)
            transport.send_event(
                "profile", steps=self._steps, first_step=self._first, table=rows, trace_path=self._trace_path
            )
        except Exception as error:
            _report_failure(error)


class _QuietKineto:
    """Kineto reads its log level when it is first used, and from torch 2.13 on writes two lines to stderr a profile.

    The variable is put back at once. Where the training has profiled before us, the level stays what it was.
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
    """``[{op, calls, cpu_ms, device_ms}]``: self times over all profiled steps, the most expensive first."""
    rows = [
        {
            "op": str(row.key)[:120],
            "calls": int(row.count),
            "cpu_ms": round(row.self_cpu_time_total / 1e3, 4),
            "device_ms": round(_device_us(row) / 1e3, 4),
        }
        for row in averages
    ]
    return sorted(rows, key=lambda row: -max(row["cpu_ms"], row["device_ms"]))[:_ROWS]


def _device_us(row):
    found = getattr(row, "self_device_time_total", None)
    return found if found is not None else getattr(row, "self_cuda_time_total", 0)  # before torch 2.4


def _report_failure(error):
    transport.send_event("profile", steps=0, table=[], error="%s: %s" % (type(error).__name__, error))
