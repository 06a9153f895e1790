"""FLOPs of one training step, counted by torch's own formulas, on request: ``gputop run
--count-flops``.

The counter sees each operator as it is dispatched, calls it unchanged and adds what torch's table
says of its shapes (``torch.utils.flop_counter``, which FlopCounterMode reads as well). The step is
slower and is flagged as ours. Never the first steps, and no step with an evaluation or a
compilation in it.
"""

import os
import sys
from typing import Any

from gputop_agent import wire
from gputop_agent.runtime import guard, interrupts, transport
from gputop_agent.runtime.session import COMPILE, EVAL, session
from gputop_agent.timing.clock import SAMPLES, TOKENS, totals
from gputop_agent.timing.step_state import open_step

FIRST_STEP = 5
ATTEMPTS = 20
_NOT_TRAINING = (EVAL, COMPILE)
# has no formula of its own; does the same products
_CPU_ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"


class RunningCount:
    """What is under way: a counter that is active, and the totals when its step began."""

    counter: Any = None
    before: Any = None
    left = ATTEMPTS


def request_if_wanted():
    """Listen for steps if the launcher asked for it. Called once, with the hello."""
    if os.environ.get(wire.ENV_COUNT_FLOPS) == "1" and on_step_closed not in session.step_listeners:
        session.step_listeners.append(on_step_closed)


def on_step_closed(step, *_):
    """On the training thread at each boundary: start the counter, or take its figure and stop."""
    try:
        if RunningCount.counter is not None:
            _take(step)
        elif step >= FIRST_STEP:
            _begin()
    except Exception as error:  # a torch that we do not know: say so, and ask no more
        interrupts.pass_on()
        _give_up("%s: %s" % (type(error).__name__, error))


def _begin():
    modes = sys.modules["torch.utils._python_dispatch"]
    if session.compile_seen:
        _give_up("compiled code is not dispatched operator by operator: nothing to count")
    elif RunningCount.left <= 0:
        _give_up("no step without an evaluation, a compilation or another dispatch mode was found")
    elif modes._get_current_dispatch_mode() is None:
        counter = make_counter(modes)
        counter.__enter__()
        RunningCount.counter, RunningCount.before = counter, totals[:]
        open_step.flags |= wire.F_AGENT
    else:
        RunningCount.left -= 1


def _take(step):
    """The counted step has ended; wait until the counter is the innermost mode again."""
    modes, counter = sys.modules["torch.utils._python_dispatch"], RunningCount.counter
    if modes._get_current_dispatch_mode() is not counter:
        RunningCount.before = None  # this step's figure would be of several
        return
    counter.__exit__(None, None, None)
    before, RunningCount.counter = RunningCount.before, None
    RunningCount.left -= 1
    if (
        before is None
        or counter.failed
        or not counter.flops
        or any(totals[i] != before[i] for i in _NOT_TRAINING)
    ):
        return
    session.step_listeners.remove(on_step_closed)
    samples, tokens = (totals[i] - before[i] for i in (SAMPLES, TOKENS))
    transport.send_event(
        "flops",
        step=step,
        flops=counter.flops,
        samples=samples,
        tokens=tokens,
        operators=counter.operators,
    )


def _give_up(why):
    if on_step_closed in session.step_listeners:
        session.step_listeners.remove(on_step_closed)
    transport.send_event("flops", error=why)


def make_counter(modes):
    """A dispatch mode that adds up operations; ``on_operator(flops)`` is told of each."""
    from torch.utils import flop_counter

    formulas = vars(flop_counter)
    table = dict(formulas.get("flop_registry") or formulas["flop_mapping"])
    aten = sys.modules["torch"].ops.aten
    flash = table.get(aten._scaled_dot_product_flash_attention)
    if flash is not None and hasattr(aten, _CPU_ATTENTION):
        table.setdefault(getattr(aten, _CPU_ATTENTION), flash)

    class Counter(modes.TorchDispatchMode):
        flops = operators = 0
        failed = False
        on_operator: Any = None

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            try:
                formula = table.get(func._overloadpacket)
                if formula is not None:
                    flops = int(formula(*args, **(kwargs or {}), out_val=result))
                    self.flops += flops
                    self.operators += 1
                    if self.on_operator is not None:
                        self.on_operator(flops)
            except Exception:
                interrupts.pass_on()
                self.failed = True
                guard.failed("flop_count")
            return result

    return Counter()


@session.after_fork
def reset():
    """Forget the parent's count (called in a fork's child)."""
    RunningCount.counter = RunningCount.before = None
