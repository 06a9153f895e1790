"""``torch.manual_seed``: the numbers of what follows begin anew, unless the generator is put back
to where it was before.
"""

from gputop_agent.runtime import frames, guard
from gputop_agent.timing.step_state import open_step
from gputop_agent.watchers.looks.reseeding import seeds


def install(torch):
    """Wrap the functions where everybody looks them up."""
    for name, before_, after_ in (
        ("manual_seed", before, after),
        ("set_rng_state", before_put_back, after_put_back),
    ):
        wrapper = guard.around(getattr(torch.random, name), before_, after_, always=True)
        guard.patch(torch.random, name, wrapper)
        guard.patch(torch, name, wrapper)


def before(args, kwargs):
    """The seed; None for one that is no plain number, which nobody converts twice."""
    seed = args[0] if args else kwargs.get("seed")
    return seed if type(seed) is int else None


def after(token, args, result):
    """Count the call."""
    if result is not None:
        seeds.was_set(token, frames.caller_site())


def before_put_back(args, kwargs):
    """Whether it is not a checkpoint's, which draws the numbers of its forward again."""
    return not open_step.in_backward


def after_put_back(is_the_scripts, args, result):
    """What was seeded since counts no more."""
    if is_the_scripts:
        seeds.was_put_back()
