"""Figures of the last steps for the script's own log: time by phase, throughput, memory."""

from typing import Any

from gputop_agent import wire
from gputop_agent.runtime.session import session
from gputop_agent.timing import activation
from gputop_agent.timing.clock import SAMPLES, TOKENS
from gputop_agent.timing.steps import fold

_GIB = float(1 << 30)


class _Begin:
    """Where the training began; ``number`` counts the runs of this process."""

    number = 0
    mark: Any = None


class Reader:
    """Means over the steps between two of its calls, for one log."""

    def __init__(self):
        self.number = -1
        self.mark: Any = None  # (totals, nanoseconds, steps) at the last call

    def values(self):
        """``{"step_ms": ..., "forward_ms": ..., ...}``; empty where no step ended.

        Phases that took no time are left out; memory only where it was measured.
        """
        if self.number != _Begin.number:
            self.number, self.mark = _Begin.number, _Begin.mark
        if self.mark is None:
            return {}
        before, began_ns, done = self.mark
        with session.lock:
            memory = fold.memory
            self.mark = totals, end_ns, steps = _now()
        count, duration_ns = steps - done, end_ns - began_ns
        if count <= 0 or duration_ns <= 0:
            return {}
        figures = {"step": steps, "step_ms": duration_ns / 1e6 / count}
        for index, phase in enumerate(wire.PHASES):
            spent_ns = totals[index] - before[index]
            if spent_ns > 0:
                figures[phase + "_ms"] = spent_ns / 1e6 / count
        for name, index in (("samples_per_s", SAMPLES), ("tokens_per_s", TOKENS)):
            if totals[index] > before[index]:
                figures[name] = (totals[index] - before[index]) / (duration_ns / 1e9)
        figures.update(_memory(memory))
        return figures


def _now():
    """Totals, end and number of the steps that were handed to the recorder."""
    return fold.begin_totals, fold.began_ns, session.step - fold.n_steps


def _memory(memory):
    names = ("allocated_gib", "reserved_gib", "peak_allocated_gib", "rss_gib")
    return {name: size / _GIB for name, size in zip(names, memory) if size >= 0}


def _begin():
    _Begin.number += 1
    _Begin.mark = _now()


@session.after_fork
def reset():
    """In a forked child."""
    _Begin.number += 1
    _Begin.mark = None


activation.on_start.append(_begin)
