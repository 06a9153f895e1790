"""Aids for finding faults that make every step slower while they are on: anomaly mode, profilers,
tracers.

Whether they are on is looked at now and then from the agent's thread, because many are on for a
part of the step only or for a part of the run.
"""

from gputop_agent.hooks import dynamo
from gputop_agent.runtime import source
from gputop_agent.runtime.session import session
from gputop_agent.watchers import burst, tracers
from gputop_agent.watchers.graphs import anomaly

_MIN_LOOKS = 10
_NO_CHANGE = 0.1  # shares are told again when they have moved by so much
_WORDS = {
    "anomaly": (r"detect_anomaly\s*=\s*(?!False)", r"detect_anomaly\("),
    "profiler": (r"profile\(",),
    "tracemalloc": (r"tracemalloc\.start\(",),
}
"""What switches each on, a trainer's argument first."""


class DebugAids:
    """How often the agent's thread found each aid on; ``session.debug`` gets parts of time."""

    def __init__(self):
        self.looks = 0
        self.anomaly = 0
        self.profiler = 0

    def sample(self):
        """Look once. Half a microsecond; reads two flags of the process and nothing of the training
        thread.

        Not while torch compiles: it traces in anomaly mode by itself.
        """
        if dynamo.is_compiling():
            return
        torch = session.torch
        self.looks += 1
        if torch.is_anomaly_enabled() and not anomaly.AnomalyForward.is_gputops:
            self.anomaly += 1
        if not burst.is_active() and getattr(
            torch.autograd.profiler, "_is_profiler_enabled", False
        ):
            self.profiler += 1
        if self.looks % _MIN_LOOKS == 0:
            session.debug["anomaly"] = _rounded(self.anomaly / self.looks)
            session.debug["profiler"] = _rounded(self.profiler / self.looks)
            session.debug["tracemalloc"] = tracers.is_tracing_memory()
            for key, patterns in _WORDS.items():
                if session.debug[key] and key + "_at" not in session.debug:
                    session.debug[key + "_at"] = _place_of_first(patterns)


def _place_of_first(patterns):
    places = map(source.place_matching, patterns)
    return next(filter(None, places), None)


def _rounded(share):
    return round(round(share / _NO_CHANGE) * _NO_CHANGE, 1)
