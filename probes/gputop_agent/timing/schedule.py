"""When windows open: at random steps that are the same on all ranks.

The choice is a pure function of the run's id and the count of steps. A block of 2 n steps has the
window of one of its two halves, so that of two ranks which disagree on the length of a block one
opens all the windows of the other.
"""

import os
import zlib
from functools import lru_cache

from gputop_agent import wire

SMALLEST_BLOCK = 16  # steps
MAX_BLOCK = 1 << 16
WINDOW_STEPS = 4  # at least
WINDOW_SHARE = 16  # of a long block one step in so many is measured


@lru_cache(maxsize=1)
def seed():
    """A number that all ranks of a run share.

    Asked for at each window, and read once: ``os.environ.get`` takes a KeyError that a user's
    signal handler raises in the middle of it for a name that is not there, and the user's timeout
    is lost.
    """
    return zlib.crc32(os.environ.get(wire.ENV_RUN_ID, "").encode())


def block_of(step_ns, longest_ns):
    """Steps of a block: the largest power of two that takes no longer than ``longest_ns``."""
    block = SMALLEST_BLOCK
    while 2 * block * step_ns <= longest_ns and block < MAX_BLOCK:
        block *= 2
    return block


def window_length(block):
    """Steps of the window in a block."""
    return max(WINDOW_STEPS, block // WINDOW_SHARE)


def window_after(seed, step, block):
    """The first step of the first window that begins later than ``step``."""
    first = step - step % block
    start = _window_in(seed, first, block)
    return start if start > step else _window_in(seed, first + block, block)


def _window_in(seed, first, block):
    while block > SMALLEST_BLOCK:
        block //= 2
        if _random(seed, first, block) & 1:
            first += block
    return first + _random(seed, first, 1) % SMALLEST_BLOCK


def _random(seed, first, block):
    return zlib.crc32(b"%d %d %d" % (seed, first, block)) >> 8
