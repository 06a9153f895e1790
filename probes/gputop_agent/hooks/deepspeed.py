"""DeepSpeed's engine steps its own optimizers: its ``step`` is the update, at a boundary."""

from gputop_agent.runtime import finder, guard
from gputop_agent.runtime.sentinel import sentinel
from gputop_agent.runtime.session import OPTIMIZER, session
from gputop_agent.timing import clock

from . import optimizer


def install(torch):
    """Wrap the engine when it is imported."""
    finder.after_import("deepspeed.runtime.engine", _wrap)


def _wrap(module):
    engine = module.DeepSpeedEngine
    guard.patch(engine, "step", guard.around(engine.step, before, after, always=True))


def before(args, kwargs):
    """Begin the phase; note whether this call updates the weights.

    ZeRO takes gradients away between micro-batches, which looks like an update unseen: the engine
    tells of each.
    """
    session.engine_seen = True
    sentinel.optimizer_stepped()
    depth = len(clock.stack)
    boundary = bool(args[0].is_gradient_accumulation_boundary())
    clock.enter(OPTIMIZER)
    return depth, boundary


def after(token, args, result):
    """End the phase."""
    depth, boundary = token
    clock.unwind(depth)
    if boundary:
        optimizer.step_seen()
