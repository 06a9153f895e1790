"""Weights that are loaded into a model by ``Module.load_state_dict``."""

from gputop_agent.runtime import frames, guard, transport
from gputop_agent.runtime.session import NOT_ACTIVE, session

MAX_EVENTS = 32


class Loads:
    """What this process has loaded so far."""

    def __init__(self):
        self.events = 0
        self.is_inside = False  # a load that another one makes


loads = Loads()


@session.after_fork
def reset():
    """In a forked child."""
    loads.__init__()


def install(torch):
    """Wrap ``load_state_dict`` where all modules have it from."""
    original = torch.nn.Module.load_state_dict
    wrapper = guard.around(original, before, after, adopt=_does_not_train_yet, always=True)
    guard.patch(torch.nn.Module, "load_state_dict", wrapper)


def _does_not_train_yet():
    return session.thread_ident == NOT_ACTIVE


def before(args, kwargs):
    """The user's line; None inside another load, or where enough were told."""
    if loads.is_inside or loads.events >= MAX_EVENTS:
        return None
    site = frames.own_site() or ""
    loads.is_inside = True
    return site


def after(token, args, result):
    """Tell of it."""
    loads.is_inside = False
    if result is None or not args:
        return  # it failed
    loads.events += 1
    transport.send_event(
        "weights_loaded", step=session.step, into=type(args[0]).__name__, site=token or None
    )
