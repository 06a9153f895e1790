"""Whether the training acts in a world of the script's own, as reinforcement learning does."""

import sys

from gputop_agent.runtime import source

STEPPED = (
    r"^(?!.*loss)(?=.*(rew|done|terminat|truncat|obs))[^=#]*,[^=#]*=[^=#]*[\w\]]\.step\(\s*[^)\s]"
)
"""``seen, reward, over = canals.step(moves)``"""
_LIBRARIES = ("gymnasium", "gym")


def are_stepped():
    """Whether one of the usual libraries is loaded, or a line of the user's steps a world."""
    return any(name in sys.modules for name in _LIBRARIES) or source.has(STEPPED)
