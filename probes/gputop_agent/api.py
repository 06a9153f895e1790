"""The guest's side of ``gputop.step()``, ``gputop.phase()`` and ``gputop.log()``."""

import threading
from time import monotonic_ns

from gputop_agent import wire
from gputop_agent.runtime import current, interrupts, transport
from gputop_agent.runtime.session import session
from gputop_agent.timing import clock, device, recent, sampling, steps
from gputop_agent.watchers import exceptions

_OTHER = wire.PHASES.index("other")
_MAX_NAMES = 64
_LOG_PERIOD_NS = 100_000_000
_MAX_VALUES = 64

_totals = {}  # name -> [phase index, total_ns, count]
_unsent = set()


class _NamedPhases:
    """When totals of named phases and numbers of the script were sent."""

    def __init__(self):
        self.started_s = None
        self.sent_s = 0.0
        self.last_log_ns = 0
        self.lock = threading.Lock()


_named = _NamedPhases()


def step():
    """The script says that a training step ends here."""
    if threading.get_ident() == session.thread_ident or not session.thread_ident:
        sampling.settle()
        steps.manual_step()


def enter(name):
    """Begin a named phase. Returns the token that ``leave`` wants."""
    phase = wire.PHASES.index(name) if name in wire.PHASES else _OTHER
    timed = threading.get_ident() == session.thread_ident
    if timed:
        session.phases_named = True
        clock.enter(phase)
    return name, phase, timed, monotonic_ns()


def leave(token):
    """End a named phase. A word that is none of gputop's counts as "other", with its own total."""
    name, phase, timed, began_ns = token
    if timed:
        clock.leave()
    _count(name, phase, monotonic_ns() - began_ns)


def timed(name, elapsed_ns):
    """Count time that the script measured itself; the phases of the step stay as they are."""
    _count(name, _OTHER, elapsed_ns)


def _count(name, phase, elapsed_ns):
    with _named.lock:
        total = _totals.get(name)
        if total is None:
            if len(_totals) >= _MAX_NAMES:
                return
            total = _totals[name] = [phase, 0, 0]
        total[1] += elapsed_ns
        total[2] += 1
        _unsent.add(name)


def log(values):
    """Send the script's own numbers, at most ten times a second; what comes faster is dropped."""
    now_ns = monotonic_ns()
    if now_ns - _named.last_log_ns < _LOG_PERIOD_NS:
        return
    _named.last_log_ns = now_ns
    scalars = {}
    for name, value in list(values.items())[:_MAX_VALUES]:
        number = _number(str(name), value)
        if number is not None:
            scalars[str(name)] = number
    if scalars:
        transport.send_event("log", step=current.step(), values=scalars)


def flush(now_s):
    """Send changed totals of named phases; once a second at first, less often later."""
    if not _unsent:
        return
    if _named.started_s is None:
        _named.started_s = now_s
    if now_s - _named.sent_s < min(30.0, max(1.0, (now_s - _named.started_s) / 60)):
        return
    _named.sent_s = now_s
    with _named.lock:
        changed = [(name, list(_totals[name])) for name in _unsent]
        _unsent.clear()
    for name, (phase, total_ns, count) in changed:
        transport.send_event(
            "named_phase", name=name, phase=wire.PHASES[phase], total_ns=total_ns, count=count
        )


def reader():
    """Its ``values()`` are figures of the steps since the last call (``step_ms`` ...)."""
    return recent.Reader()


def raised(error, traceback):
    """Tell of an exception that ended the training, though the process lives on: a notebook's."""
    exceptions.report(error, traceback)


@session.after_fork
def reset():
    """Forget the parent's totals (called in a fork's child)."""
    _named.__init__()
    _totals.clear()
    _unsent.clear()


def _number(name, value):
    """A float, or None without a value on the host yet: a CUDA scalar is read late."""
    if getattr(value, "is_cuda", False):
        if threading.get_ident() == session.thread_ident:
            device.timer.late_scalar(device.LOG_PREFIX + name, value)
        return None
    if isinstance(value, (str, bytes)):
        return None
    try:
        return float(value.detach() if hasattr(value, "detach") else value)
    except (TypeError, ValueError, RuntimeError):
        interrupts.pass_on()
        return None
