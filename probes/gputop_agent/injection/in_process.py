"""The guest in a process that has begun without it: a notebook, or a script of a managed job.

What the process does from then on is seen; torch may be imported already.
"""

import importlib.util
import os
import sys
from typing import Any

from gputop_agent.injection import core, process, thread
from gputop_agent.runtime import guard
from gputop_agent.runtime.session import SWITCHED_OFF, session

_FINDER_NAME = "GputopFinder"


class _Guest:
    """Whether the guest rests between two stretches of a process that are looked at."""

    def __init__(self):
        self.rests = False


_guest = _Guest()


def is_present():
    """Whether the guest's hooks are in this process, or will be once torch is imported."""
    return session.torch is not None or any(
        type(finder).__name__ == _FINDER_NAME for finder in sys.meta_path
    )


def load():
    """Put the hooks in place, now or right after ``import torch``; again after ``leave``."""
    if _guest.rests:
        _guest.rests = False
        process.begin_anew()
    if is_present():
        return
    finder = _finder_class()({})
    sys.meta_path.insert(0, finder)
    torch = sys.modules.get("torch")
    if torch is not None:
        core.install(torch, finder)
    else:
        finder.targets["torch"] = lambda module: core.install(module, finder)


def leave():
    """Say goodbye to the recorder; nothing is looked at until the next ``load``."""
    if session.thread_ident == SWITCHED_OFF:  # after errors: the originals are back for good
        return
    process.at_exit()
    guard.safely(thread.stop)
    process.begin_anew()
    session.thread_ident, session.ended_pid = SWITCHED_OFF, 0
    _guest.rests = True


def _finder_class():
    path = os.path.join(os.path.dirname(os.path.dirname(__file__)), "inject", "sitecustomize.py")
    spec: Any = importlib.util.spec_from_file_location("gputop_inject", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.GputopFinder
