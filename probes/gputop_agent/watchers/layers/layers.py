"""Which layer takes the time: single steps in which every module is watched, ``gputop run
--layers`` or on command.

The steps are the same on all ranks: some early ones, then one in each long block of steps
(``schedule``), so far apart that they cost less than ``COST_SHARE`` of the run. On all other steps
nothing of this is in. A step that evaluates or compiles gives no times. They carry ``F_AGENT``, so
none of them counts in the run's statistics.

Once per request the operations of a step are counted by layer instead, where nothing is compiled.
"""

import os
import sys
from typing import Any

from gputop_agent import wire
from gputop_agent.runtime import guard, interrupts, modes, transport
from gputop_agent.runtime.living import alive
from gputop_agent.runtime.session import BACKWARD, COMPILE, EVAL, FORWARD, session
from gputop_agent.timing import flop_count, schedule, steps
from gputop_agent.timing.clock import totals
from gputop_agent.timing.step_state import open_step
from gputop_agent.watchers.layers import layer_sizes
from gputop_agent.watchers.layers.layer_clock import LayerClock
from gputop_agent.watchers.layers.layer_slots import Observed, SlottedModules

EARLY_STEPS = (12, 14, 16, 20)  # the last one counts operations, where it can
PERIOD_NS = 30_000_000_000
COST_SHARE = 0.002
LEAD_STEPS = 400  # before a burst hooks have to be in, which a loop of short steps learns late
ROWS_AT_ONCE = 400  # of the table, in one event
NUMBERS_AT_ONCE = 2000
_NOT_TRAINING = (EVAL, COMPILE)


class LayerWatch:
    """When the next step is looked at, and the look that is going on."""

    def __init__(self):
        self.is_on = False
        self.asked = 0  # steps that were asked for and have not been watched
        self.due = -1  # the step that is watched next
        self.wants_flops = False
        self.look: Any = None
        self.table: Any = None  # that was sent
        self.unread: Any = []  # looks whose device has not passed all events
        self.cost_ns = 0  # of a watched step, above the others
        self.step_ns = 0.0  # of the others, smoothed
        self.ended_ns = 0
        self.early = list(EARLY_STEPS)


watch = LayerWatch()


@session.after_fork
def reset():
    """Forget the parent's (called in a fork's child); its slots go as well."""
    look = watch.look
    if look is not None:
        look.abandon()
    watch.__init__()


def request_if_wanted():
    """Watch from the start if the launcher asked for it. Called once, with the hello."""
    if os.environ.get(wire.ENV_LAYERS) == "1" and not watch.is_on:
        watch.is_on = watch.wants_flops = True
        _listen()


def request(command):
    """Watch some steps, on command; from the agent's thread."""
    count = command.get("steps")
    watch.asked = max(1, min(20, count if isinstance(count, int) else 3))
    watch.wants_flops = True
    watch.due = -1
    _listen()


def _listen():
    if on_step_closed not in session.boundary_listeners:
        session.boundary_listeners.append(on_step_closed)


def keep_hooks_in(*_):
    """As a listener of every step it has the hooks stay in."""


def on_step_closed(step, t_end_ns):
    """A step has ended: end the look at it, or begin one at the next."""
    look = watch.look
    try:
        _note_wall(t_end_ns)
        if look is not None:
            steps.book_agent_time(_end, look, step)
        if watch.unread:
            _read_device()
        if watch.is_on or watch.asked:
            _plan(step + 1)
        elif not watch.unread:
            _stop_listening()
    except Exception:
        guard.failed("layers")
        _abandon()


def _plan(upcoming):
    if watch.due < upcoming:
        watch.due = _next_due(upcoming)
    is_near = watch.due - upcoming <= LEAD_STEPS
    if is_near and keep_hooks_in not in session.step_listeners:
        session.step_listeners.append(keep_hooks_in)
    elif not is_near and keep_hooks_in in session.step_listeners:
        session.step_listeners.remove(keep_hooks_in)
    if watch.due == upcoming and not session.hooks_out:
        steps.book_agent_time(_begin, upcoming)
        open_step.flags |= wire.F_AGENT


def _next_due(upcoming):
    if watch.asked:
        return schedule.window_after(schedule.seed(), upcoming, schedule.SMALLEST_BLOCK)
    while watch.early and watch.early[0] < upcoming:
        del watch.early[0]
    if watch.early:
        return watch.early.pop(0)
    longest_ns = max(PERIOD_NS, watch.cost_ns / COST_SHARE)
    block = schedule.block_of(max(watch.step_ns, 1.0), longest_ns)
    return schedule.window_after(schedule.seed(), upcoming, block)


def _note_wall(t_end_ns):
    """Smooth the time of steps that are not watched; of one that is, note what it takes more."""
    wall_ns, watch.ended_ns = t_end_ns - watch.ended_ns, t_end_ns
    if session.hooks_out or wall_ns > 1e15:
        return
    if watch.look is not None:
        if watch.step_ns:
            watch.cost_ns = max(watch.cost_ns, wall_ns - int(watch.step_ns))
        else:
            watch.cost_ns = 0
    else:
        if not watch.step_ns:
            watch.step_ns = wall_ns
        else:
            watch.step_ns = watch.step_ns + 0.2 * (wall_ns - watch.step_ns)


def _stop_listening():
    for listeners, listener in (
        (session.boundary_listeners, on_step_closed),
        (session.step_listeners, keep_hooks_in),
    ):
        if listener in listeners:
            listeners.remove(listener)


def _begin(step):
    roots = alive(session.roots)
    if not roots:
        return
    layers = SlottedModules(roots)
    rows = layer_sizes.table(layers)
    if rows != watch.table:
        _send_table(rows)
        watch.table = rows
    counter = _counter() if watch.wants_flops else None
    watch.look = WatchedStep(layers, counter)


def _counter():
    """A counter of operations that is active; None where there is nothing it could count."""
    python_dispatch = sys.modules.get("torch.utils._python_dispatch")
    if session.compile_seen or python_dispatch is None:
        watch.wants_flops = False
        return None
    if watch.early or python_dispatch._get_current_dispatch_mode() is not None:
        return None  # times come first
    return flop_count.make_counter(python_dispatch)


def _end(look, step):
    watch.look = None
    look.take_out()
    look.clock.forget_open_call()
    if any(totals[i] != look.before[i] for i in _NOT_TRAINING) or not any(look.clock.calls):
        return
    if look.counter is not None:
        watch.wants_flops = False
        if not look.counter.failed:
            _send(step, flops=look.flops)
        return
    watch.asked = max(0, watch.asked - 1)
    if look.clock.device is not None:
        watch.unread.append((step, look))
        del watch.unread[:-8]
    else:
        _send_times(step, look, look.clock.self_ns)


def _read_device():
    while watch.unread and watch.unread[0][1].clock.device.is_read():
        step, look = watch.unread.pop(0)
        _send_times(step, look, look.clock.device.times_ns(look.count))


def _send_times(step, look, self_ns):
    clock = look.clock
    forward_ns, backward_ns = self_ns
    layers_forward_us = [ns // 1000 for ns in forward_ns]
    layers_backward_us = [ns // 1000 for ns in backward_ns]
    _send(
        step,
        forward_us=layers_forward_us[:-1],
        backward_us=layers_backward_us[:-1],
        calls=clock.calls,
        activation_bytes=look.outputs.bytes,
        gradient_bytes=look.gradient_bytes,
        optimizer_bytes=layer_sizes.optimizer_bytes(look.layers),
        dtypes=[dtype or "" for dtype in look.outputs.dtypes],
        recomputed=sorted(clock.recomputed | layer_sizes.checkpoints(look.layers)),
        clock="host" if clock.device is None else "device",
        outside_forward_ms=look.outside_ms(FORWARD, layers_forward_us, clock.hook_ns[0]),
        outside_backward_ms=look.outside_ms(BACKWARD, layers_backward_us, clock.hook_ns[1]),
        forward_ms=look.phase_ms(FORWARD),
        backward_ms=look.phase_ms(BACKWARD),
        hook_ms=_ms(sum(clock.hook_ns)),
        graph_nodes=clock.nodes,
    )


def _send(step, **columns):
    """One event, or several of many layers: ``first`` is the row of its columns' begin."""
    lists = {name: value for name, value in columns.items() if isinstance(value, list)}
    scalars = {name: value for name, value in columns.items() if name not in lists}
    recomputed = lists.pop("recomputed", None)
    count = max(len(value) for value in lists.values())
    for first in range(0, count, NUMBERS_AT_ONCE):
        part = {name: value[first : first + NUMBERS_AT_ONCE] for name, value in lists.items()}
        if recomputed is not None:
            part["recomputed"] = recomputed
        transport.send_event("layers", step=step, first=first, **dict(scalars, **part))


def _send_table(rows):
    for first in range(0, len(rows), ROWS_AT_ONCE):
        part = rows[first : first + ROWS_AT_ONCE]
        transport.send_event("layer_table", first=first, count=len(rows), rows=part)


def _ms(nanoseconds):
    return round(nanoseconds / 1e6, 4)


class WatchedStep:
    """One step in which every module is watched."""

    def __init__(self, layers, counter):
        self.layers = layers
        self.count = count = len(layers.modules)
        uses_device = session.cuda and counter is None
        self.clock = LayerClock(count, layers.owners, uses_device)
        self.outputs = layer_sizes.Outputs(count)
        self.gradient_bytes = [0] * count
        self.flops = [0] * (count + 1)
        self.before = totals[:]
        self.counter = counter
        self.open_root: Any = None
        self.observed = Observed(layers, self)
        if counter is not None:
            counter.on_operator = self._count
            counter.__enter__()

    def _count(self, flops):
        self.flops[self.clock.current] += flops

    def enter(self, index, args, kwargs):
        """A layer is called."""
        stopped = self.clock.stop()
        if self.counter is None:
            modes.unseen(self.outputs.begin)(args)
        self.clock.enter(index, stopped)

    def leave(self, index, result):
        """Its call has ended."""
        stopped = self.clock.stop()
        try:
            if self.counter is None:
                modes.unseen(self.outputs.end)(index, result)
                modes.unseen(self.clock.hook_results)(layer_sizes.tensors_in(result))
        finally:
            self.clock.leave(stopped)

    def root_called(self, module):
        """A forward begins. Where that ended the step before, no slot was in yet to say so."""
        index = self.layers.by_id.get(id(module))
        if index is not None and not self.clock.is_running:
            self.open_root = index
            self.enter(index, (), {})

    def root_left(self):
        """It has ended."""
        index, self.open_root = self.open_root, None
        if index is not None:
            self.leave(index, None)

    def hook_nodes(self, tensors):
        """The graph is there: hook its nodes."""
        self.clock.hook_nodes(tensors, not open_step.in_backward)

    def backward_begins(self):
        """The phase of the outermost backward has begun."""
        self.clock.backward_begins()

    def backward_ended(self):
        """The outermost backward has ended; its gradients are there."""
        self.clock.backward_ended()

    def update_begins(self):
        """Gradients are as the optimizer finds them."""
        self.gradient_bytes = layer_sizes.gradient_bytes(self.layers)

    def phase_ms(self, phase):
        """Time of a phase since this began."""
        return _ms(totals[phase] - self.before[phase])

    def outside_ms(self, phase, times_us, hook_ns):
        """Time of a phase that is neither a layer's nor the hooks': a loss, say. By the device's
        clock what was timed outside of modules.
        """
        if self.clock.device is not None:
            return _ms(times_us[-1] * 1000)
        rest_ms = self.phase_ms(phase) - sum(times_us[:-1]) / 1e3 - hook_ns / 1e6
        return round(max(0.0, rest_ms), 4)

    def take_out(self):
        """Leave nothing of ours in the model, the graph and the dispatcher."""
        self.observed.take_out()
        self.clock.remove_hooks()
        counter = self.counter
        if counter is not None:
            python_dispatch = sys.modules["torch.utils._python_dispatch"]
            if python_dispatch._get_current_dispatch_mode() is counter:
                counter.__exit__(None, None, None)
            else:
                counter.failed = True

    abandon = take_out


def _abandon():
    look, watch.look = watch.look, None
    if look is not None:
        try:
            look.take_out()
        except Exception:
            interrupts.pass_on()


def hook_nodes(tensors):
    """A backward will begin, the outermost or one inside another (re-entrant checkpoints)."""
    if isinstance(tensors, session.torch.Tensor):
        tensors = (tensors,)
    guard.safely(modes.unseen(watch.look.hook_nodes), tensors)


def root_called(module):
    """The forward of an outermost module begins."""
    guard.safely(watch.look.root_called, module)
