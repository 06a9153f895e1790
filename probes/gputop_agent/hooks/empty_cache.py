"""``torch.cuda.empty_cache``: gives memory back to the driver, to be asked for again."""

from time import monotonic_ns

from gputop_agent.runtime import frames, guard
from gputop_agent.timing.memory import emptied


def install(torch):
    """Wrap the function where everybody looks it up."""
    wrapper = guard.around(torch.cuda.memory.empty_cache, before, after, always=True)
    guard.patch(torch.cuda.memory, "empty_cache", wrapper)
    guard.patch(torch.cuda, "empty_cache", wrapper)


def before(args, kwargs):
    """Note the time and, at the first call, the line."""
    if emptied.site is None:
        emptied.site = frames.caller_site()
    return monotonic_ns()


def after(token, args, result):
    """Count the call."""
    emptied.calls += 1
    emptied.spent_ns += monotonic_ns() - token
