"""The lines that give schedulers of plateaus what they go by."""

from gputop_agent.runtime import frames, guard, living, transport
from gputop_agent.runtime.session import session

_told = living.Living()  # scheduler -> its line


@session.after_fork
def reset():
    """In a forked child."""
    _told.__init__()


def install(torch):
    """Wrap ``ReduceLROnPlateau.step``, which a loop calls once an epoch."""
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau
    wrapper = guard.around(scheduler.step, before, after, always=True)
    guard.patch(scheduler, "step", wrapper)


def before(args, kwargs):
    """The first time that a scheduler is given a metric: the user's line."""
    scheduler, site = args[0], frames.caller_site()
    if site is not None and scheduler not in _told:
        _told.put(scheduler, site)
        transport.send_event("plateau", step=session.step, site=site)


def after(token, args, result):
    """Never called: ``before`` returns no token."""
