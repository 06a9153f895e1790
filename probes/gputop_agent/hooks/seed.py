"""``torch.manual_seed``: the numbers of what follows begin anew."""

from gputop_agent.runtime import frames, guard
from gputop_agent.watchers.reseeding import seeds


def install(torch):
    """Wrap the function where everybody looks it up."""
    wrapper = guard.around(torch.random.manual_seed, before, after, always=True)
    guard.patch(torch.random, "manual_seed", wrapper)
    guard.patch(torch, "manual_seed", wrapper)


def before(args, kwargs):
    """The seed; None for one that is no plain number, which nobody converts twice."""
    seed = args[0] if args else kwargs.get("seed")
    return seed if type(seed) is int else None


def after(token, args, result):
    """Count the call."""
    if result is not None:
        seeds.was_set(token, frames.caller_site())
