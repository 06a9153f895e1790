"""Whether the random numbers of a step are those of a step before: a seed that is set in the loop.

The state of torch's CPU generator is read before the forward and before the update of a step that
is looked at. Steps that draw nothing in between leave it as it is, and say nothing.
"""

import ctypes
import sys
import zlib

from gputop_agent.runtime import frames, late, source
from gputop_agent.runtime.session import session

NOT_READ = -1


class Reseeding:
    """Looks in a row at which a step that draws random numbers began in the same state."""

    def __init__(self):
        self.began = self.began_before = NOT_READ  # CRC-32 of the state before the forward
        self.looks = 0

    def before_forward(self):
        """A step that is looked at begins."""
        self.began_before, self.began = self.began, _state()

    def before_update(self):
        """Fields of the event; empty where the step before the last look drew other numbers."""
        state = _state()
        if NOT_READ in (self.began, state) or state == self.began:
            return {}
        self.looks = self.looks + 1 if self.began == self.began_before else 0
        if not self.looks:
            return {}
        calling = [frame for frame in frames.stack(sys._getframe(1)) if frames.is_user(frame)]
        at = source.call_that_runs("manual_seed", calling)
        return {"reseeded_looks": self.looks, "reseeded_at": at}


def _state():
    if not late.may_look():
        return NOT_READ
    state = session.torch.get_rng_state()
    return zlib.crc32(ctypes.string_at(state.data_ptr(), state.numel()))
