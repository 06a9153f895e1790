"""Whether the random numbers of a step are those of a step before: a seed that is set in the loop.

Calls of ``torch.manual_seed`` are counted by seed. What they did is asked at the update of a step
that is looked at: whether torch's CPU generator still counts from that seed (``fork_rng`` takes it
back) and has given numbers since.
"""

import ctypes

from gputop_agent.runtime import late
from gputop_agent.runtime.session import session

MAX_SEEDS = 8
MIN_CALLS = 10
"""With one seed, before anything is said."""


class SeedCalls:
    """Calls with one seed, since the training began."""

    def __init__(self):
        self.count = 0
        self.since_step = self.last_step = session.step
        self.site = None


class Seeds:
    """Seeds that the training thread has set."""

    def __init__(self):
        self.calls: "dict[int, SeedCalls]" = {}
        self.last_seed = -1  # none yet

    def was_set(self, seed, site):
        """``torch.manual_seed(seed)`` was called at ``site``."""
        self.last_seed = seed
        calls = self.calls.get(seed)
        if calls is None:
            if len(self.calls) >= MAX_SEEDS:
                self._forget_single()
            calls = self.calls[seed] = SeedCalls()
        calls.count += 1
        calls.last_step, calls.site = session.step, site

    def was_put_back(self):
        """The generator goes on from a state that was kept, as before the last seed."""
        self.last_seed = -1

    def before_update(self):
        """Fields of the event; empty where this step's numbers come from no seed set again."""
        calls = self.calls.get(self.last_seed)
        if calls is None or calls.count < MIN_CALLS:
            return {}
        # what comes before the first forward still counts as of the step before
        if calls.last_step < session.step - 1:
            return {}
        if not late.may_look() or not _has_drawn_since(self.last_seed):
            return {}
        return {
            "seed_calls": calls.count,
            "seeded_since": calls.since_step,
            "seeded_at": calls.site,
        }

    def _forget_single(self):
        """Seeds that differ from step to step."""
        for seed in [seed for seed, calls in self.calls.items() if calls.count == 1]:
            del self.calls[seed]
        if len(self.calls) >= MAX_SEEDS:
            self.calls.clear()


seeds = Seeds()


@session.after_fork
def reset():
    """In a forked child."""
    seeds.__init__()


def _has_drawn_since(seed):
    torch = session.torch
    if torch.initial_seed() != seed:
        return False
    fresh = torch.Generator()
    fresh.manual_seed(seed)
    return _bytes_of(torch.get_rng_state()) != _bytes_of(fresh.get_state())


def _bytes_of(state):
    return ctypes.string_at(state.data_ptr(), state.numel())
