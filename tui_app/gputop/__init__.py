"""gputop: htop for PyTorch training.

Importing this package is cheap and has no effect on a training that was not started by ``gputop
run``. For scripts that want to tell more than can be seen from outside there are three functions;
outside ``gputop run`` they do nothing::

    with gputop.phase("tokenize"):      # or @gputop.phase("tokenize")
        ...
    gputop.log(reward=reward)
    gputop.step()                        # this step ends here

``gputop.estimate("llama-3-8b", seq=4096)`` says how much GPU memory a training needs, and
``gputop.plan("llama-3-70b", gpu="H100", gpus=64)`` how to split it; the first use of each loads it.
"""

import sys as _sys

__version__ = "0.1.0"

_AGENT = "gputop_agent.api"
_CALLS = ("estimate", "plan")  # commands that Python code may call; their table says how


def step():
    """Say that a training step ends here; from the first call on these are the boundaries."""
    agent = _sys.modules.get(_AGENT)
    if agent is not None:
        try:
            agent.step()
        except Exception:  # nothing of ours may reach the training
            pass


def log(**scalars):
    """Put numbers of your own beside the steps, at most ten times a second; what comes faster is
    dropped.

    Takes numbers and one-element tensors; a CUDA tensor is read later, without waiting for it.
    """
    agent = _sys.modules.get(_AGENT)
    if agent is not None:
        try:
            agent.log(scalars)
        except Exception:
            pass


class phase:
    """Names a part of the step: ``with gputop.phase("data"):`` or ``@gputop.phase("data")``.

    The ten phases (data, h2d, forward, backward, optimizer, comm, eval, checkpoint, compile, other)
    are booked as such; time under any other name is booked as other and summed up under that name.
    """

    __slots__ = ("_name", "_tokens")

    def __init__(self, name):
        self._name = str(name)
        self._tokens = []

    def __enter__(self):
        agent = _sys.modules.get(_AGENT)
        token = None
        if agent is not None:
            try:
                token = agent, agent.enter(self._name)
            except Exception:
                pass
        self._tokens.append(token)
        return self

    def __exit__(self, *exception):
        token = self._tokens.pop()
        if token is not None:
            try:
                token[0].leave(token[1])
            except Exception:
                pass

    def __call__(self, function):
        name = self._name
        if _is_coroutine(function):  # a call only makes it: use `with` inside
            return function

        def timed(*args, **kwargs):
            with phase(name):
                return function(*args, **kwargs)

        for attribute in ("__module__", "__name__", "__qualname__", "__doc__"):
            setattr(timed, attribute, getattr(function, attribute, None))
        timed.__dict__.update(getattr(function, "__dict__", {}))
        timed.__dict__["__wrapped__"] = function
        return timed


def load_ipython_extension(shell):
    """``%load_ext gputop``: the cell magic ``%%gputop``."""
    from gputop.notebook import load

    load(shell)


def __getattr__(name):
    if name in _CALLS:
        from importlib import import_module

        # by name: who imports gputop does not import its command line
        return import_module("gputop.cli.commands").find(name).call()
    raise AttributeError("module 'gputop' has no attribute " + repr(name))


def _is_coroutine(function):
    return bool(getattr(getattr(function, "__code__", None), "co_flags", 0) & 0x80)
