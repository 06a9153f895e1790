"""Calls of ``torch.cuda.empty_cache``: each gives memory back to the driver, which has to be asked for it again."""

from time import monotonic_ns

from gputop_agent import frames, guard

calls = 0
spent_ns = 0
site = None  # the line that called it first


def install(torch):
    """Wrap the function where everybody looks it up."""
    wrapper = guard.around(torch.cuda.memory.empty_cache, before, after, always=True)
    guard.patch(torch.cuda.memory, "empty_cache", wrapper)
    guard.patch(torch.cuda, "empty_cache", wrapper)


def before(args, kwargs):
    """Note the time and, at the first call, the line."""
    global site
    if site is None:
        site = frames.caller_site()
    return monotonic_ns()


def after(token, args, result):
    """Count the call."""
    global calls, spent_ns
    calls += 1
    spent_ns += monotonic_ns() - token
