"""Whether the training makes its own data, as reinforcement learning does."""

import sys

from gputop_agent.runtime import source
from gputop_agent.runtime.session import session

STEPPED = (
    r"^(?!.*loss)(?=.*(rew|done|terminat|truncat|obs))[^=#]*,[^=#]*=[^=#]*[\w\]]\.step\(\s*[^)\s]"
)
"""``seen, reward, over = canals.step(moves)``"""
_LIBRARIES = ("gymnasium", "gym")


def are_acted_in():
    """Whether one of the usual libraries is loaded, a line of the user's steps a world, or the
    network is trained on texts that it has drawn.
    """
    if session.trains_on_drawn or any(name in sys.modules for name in _LIBRARIES):
        return True
    return source.has(STEPPED)
