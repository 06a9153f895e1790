"""Where a NaN came from: nothing is watched until a loss or a gradient norm is not finite.

Then the graph of that loss is asked, while it and the weights are still as they were, and the next
steps are watched layer by layer as long as the model still shows it. With ``gputop run
--watch-numerics`` each step is watched, so that the very step can be explained. On a GPU numbers
are read some steps later, without waiting; the few steps after a loss that is not finite are read
at once.
"""

import os
from collections import deque
from typing import Any

from gputop_agent import wire
from gputop_agent.runtime import guard, late, modes, source, transport
from gputop_agent.runtime.living import alive
from gputop_agent.runtime.session import OTHER, session
from gputop_agent.timing import clock, device, roots, steps
from gputop_agent.watchers.graphs import graph_origin
from gputop_agent.watchers.layers import layers
from gputop_agent.watchers.layers.layer_slots import Observed, SlottedModules
from gputop_agent.watchers.loaders import batch_origin
from gputop_agent.watchers.nan import nan_place, numeric_origin, numeric_pass
from gputop_agent.watchers.nan.updates import Updates

MAX_EVENTS = 5
MAX_NORMS = 20  # that are not finite and looked into
BURST_BACKWARDS = 2  # that are watched after a loss that is not finite
SEARCHED_BACKWARDS = 6  # and so many more while a line is looked for
REBUILD_STEPS = 500  # layers may have been replaced
MANY_SKIPS = 8  # of a GradScaler in a row: a single one is its search for a scale
MAX_PENDING = 8
COURSE_STEPS = 20
_TAKES_WEIGHTS = ("nll_loss", "nll_loss2d", "nll_loss_nd")  # of classes, which have no gradient
_NAN = r"float\([\"'][+-]?nan[\"']\)|\b(math|np|numpy|torch)\.nan\b"  # as a script writes it
_MAKES_NONE = ("mean", "sum", "add", "sub", "rsub", "neg", "mul")  # of finite values hardly ever
_HANDS_ON = (*graph_origin.STRUCTURE, "masked_fill", "where", "gather", "index_select")
MAX_COURSE = 12


class NumericsWatch:
    """What is watched now. An observer of layers, which hands on to the pass that is going on."""

    def __init__(self):
        self.is_armed = False  # each step is watched
        self.burst = 0  # backwards that are still watched otherwise
        self.is_in = False  # slots are in the layers
        self.layers: Any = None
        self.observed: Any = None
        self.built_step = 0
        self.roots: Any = ()
        self.current: Any = None  # the pass
        self.previous: Any = None
        self.pending = deque()  # passes whose numbers are on their way from a device
        self.course = deque(maxlen=MAX_COURSE)  # (step, {layer: absolute maximum})
        self.updates = Updates()
        self.sent = 0
        self.explained_step = -1
        self.norms_explained = 0
        self.skips = 0
        self.is_bad = False  # the last pass was: what follows from it is not told again

    # ---- the observer of layers

    def enter(self, index, args, kwargs):
        """A layer is called; the first call after a backward begins a pass."""
        current = self.current
        if current is None or (current.is_over and not current.is_open):
            current = self._new_pass()
        modes.unseen(current.enter)(index, args, kwargs)

    def leave(self, index, result):
        """Its call has ended."""
        if self.current is not None:
            modes.unseen(self.current.leave)(index, result)

    def _new_pass(self):
        if self.previous is not None:
            self.previous.take_out()
        self.previous, self.current = self.current, numeric_pass.Pass(self.layers)
        return self.current


watch = NumericsWatch()


@session.after_fork
def reset():
    """Forget the parent's; its slots go as well."""
    armed = watch.is_armed
    _take_out()
    watch.__init__()
    watch.is_armed = armed


def request_if_wanted():
    """Watch from the start if the launcher asked for it. Called once, with the hello."""
    if os.environ.get(wire.ENV_WATCH_NUMERICS) == "1":
        watch.is_armed = True
        session.step_listeners.append(on_step_closed)
        steps.book_agent_time(_put_in)


def on_step_closed(step, t_end_ns):
    """Put slots into what is new."""
    is_free = layers.watch.look is None and not (watch.current and watch.current.is_open)
    if not is_free:
        return
    changed = tuple(session.roots) != watch.roots
    if changed or not watch.is_in or step >= watch.built_step + REBUILD_STEPS:
        steps.book_agent_time(_put_in)


def _put_in():
    living_roots = alive(session.roots)
    if not living_roots or not late.may_look():
        return
    _take_out()
    watch.roots, watch.built_step = tuple(session.roots), session.step
    watch.layers = SlottedModules(living_roots)
    watch.observed = Observed(watch.layers, watch)
    watch.is_in = True


def _take_out():
    for run in (watch.current, watch.previous):
        if run is not None:
            run.take_out()
    if watch.observed is not None:
        watch.observed.take_out()
    nan_place.switch_off()
    watch.observed = watch.current = watch.previous = None
    watch.is_in = False


# ---- what hooks tell


def loss_read(loss, value):
    """A loss in the CPU's memory was read, before its backward."""
    if value - value != 0:
        steps.book_agent_time(_loss_is_bad, loss)
        watch.is_bad = True
    elif watch.is_armed and watch.layers is not None:
        guard.safely(watch.updates.loss, session.step, value, watch.layers)


def before_backward(tensors):
    """A backward begins, outermost, while slots are in."""
    loss = _first(tensors)
    nan_place.before_backward(loss)
    if session.cuda and watch.current is not None:
        watch.current.loss = numeric_pass.graph_origin.extent(loss)


def after_backward(tensors):
    """It has ended."""
    _booked(_judge_backward, tensors)
    if watch.is_in:
        guard.safely(nan_place.switch_on)


def _first(tensors):
    """Of what a backward is given, the tensor, or the first of several."""
    return tensors if isinstance(tensors, session.torch.Tensor) else tensors[0]


def before_update(optimizer):
    """Gradients are as the optimizer finds them; while each step is watched."""
    if watch.layers is not None:
        _booked(_judge_gradients, optimizer)


def after_update():
    """The weights have changed."""
    _booked(watch.updates.after)


def _booked(function, *args):
    """Run what each watched step needs, as "other"; unlike rare work it marks no step."""
    clock.enter(OTHER)
    guard.safely(modes.unseen(function), *args)
    clock.leave()


def norm_is_bad():
    """A gradient norm in the CPU's memory is not finite; the weights are as they were. It stays so
    once weights are not: then each look costs as much and tells nothing new.
    """
    if watch.is_bad or watch.sent >= MAX_EVENTS or watch.norms_explained >= MAX_NORMS:
        return
    if watch.explained_step < session.step and not session.scaler_seen:
        watch.norms_explained += 1
        steps.book_agent_time(_explain_norm)


def update_decided(is_skipped):
    """A GradScaler has made an update or skipped it."""
    if watch.is_armed or watch.burst:
        return
    watch.skips = watch.skips + 1 if is_skipped else 0
    if watch.skips == MANY_SKIPS and watch.sent < MAX_EVENTS:
        steps.book_agent_time(_begin_burst)


def loss_was_bad(step):
    """A loss on a GPU was not finite some steps ago."""
    if not watch.is_armed and watch.sent < MAX_EVENTS:
        steps.book_agent_time(_begin_burst)


device.on_nonfinite = loss_was_bad


# ---- answers


def _loss_is_bad(loss):
    if watch.is_bad or watch.sent >= MAX_EVENTS or watch.explained_step == session.step:
        return
    if not late.may_look():
        return
    if not roots.search.passes:
        roots.discover()  # at the first backward nothing is known yet
    current = watch.current
    if current is not None and current.calls and not current.is_over:
        _resolve(current)
        fields = numeric_origin.of_forward(current, loss)
        current.is_explained = True
        if not watch.is_armed:
            fields = _of_burst(fields)
    else:
        fields = numeric_origin.of_graph(_layers_now(), loss)
    _send(fields, session.step, batch_origin.current())
    if fields and fields["direction"] in ("forward", "input") and fields.get("operation"):
        layer = fields.get("layer") or ""
        nan_place.begin(loss, fields["operation"], session.step, _was_given(fields), layer)
    if not watch.is_in:
        _begin_burst()


def _was_given(fields):
    """Whether the operation was given values that were not finite, which have no gradient."""
    if fields["direction"] == "input" or fields["operation"] in (*_TAKES_WEIGHTS, *_HANDS_ON):
        return True
    is_of_loss = fields.get("layer") == numeric_origin.LOSS
    return is_of_loss and fields["operation"] in _MAKES_NONE


def _of_burst(fields):
    """After the first such loss most weights are not finite, and tell nothing new."""
    if watch.sent and (fields or {}).get("direction") == "weights":
        return None
    return fields


def _layers_now():
    return watch.layers if watch.is_in else SlottedModules(alive(session.roots))


def _begin_burst():
    watch.burst = BURST_BACKWARDS
    if not watch.is_in:
        session.step_listeners.append(_watch_burst)
        _put_in()


def _watch_burst(*_):
    """As a listener of every step it has the hooks stay in; in a first step the model is not known
    before its end.
    """
    if not watch.is_in:
        _put_in()


def _judge_backward(tensors):
    current = watch.current
    if current is None or current.is_over:
        return
    current.is_over = True
    current.step, current.batch = session.step, batch_origin.current()
    if session.cuda and watch.is_armed:
        _read_later(current)
    elif not current.is_explained:
        _judge_now(current, tensors)
    if watch.is_armed:
        return
    watch.burst -= 1
    if watch.burst <= (-SEARCHED_BACKWARDS if nan_place.is_open() else 0):
        watch.burst = 0
        _take_out()
        if _watch_burst in session.step_listeners:
            session.step_listeners.remove(_watch_burst)


def _judge_now(current, tensors):
    loss = _first(tensors)
    pairs = [extent for _, extent in current.backward]
    if current.loss is not None:  # on a GPU, in a burst
        pairs.append(current.loss)
    is_sampled = session.step % COURSE_STEPS == 0
    bad = not numeric_pass.all_finite(pairs)
    if bad or is_sampled:
        _resolve(current)
        _note_course(current)
    if not bad:
        watch.skips = 0
        watch.is_bad = False
        return
    if current.loss is not None and numeric_pass.is_bad(current.loss):
        weights, trained = numeric_origin.bad_weights(current.layers)
        fields = numeric_origin.of_forward(current)
        if weights:
            fields = numeric_origin.of_weights(current.layers, weights, trained)
    else:
        fields = numeric_origin.of_backward(current, loss)
    _send_backward(fields, current)


def _send_backward(fields, current):
    watch.skips += 1
    if session.scaler_seen and watch.skips < MANY_SKIPS:
        watch.explained_step = current.step
        return
    _send(fields, current.step, current.batch)


def _resolve(current):
    """Numbers in place of tensors; waits for a device."""
    current.fill(numeric_pass.numbers(current.tensors()))
    if current.loss is not None:
        current.loss = numeric_pass.numbers([current.loss])[0]


def _judge_gradients(optimizer):
    watch.updates.before(optimizer, watch.layers)
    if watch.explained_step == session.step or watch.sent >= MAX_EVENTS or session.cuda:
        return
    gradients = [
        numeric_pass.graph_origin.extent(parameter.grad)
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.grad is not None
    ]
    if not numeric_pass.all_finite([extent for extent in gradients if extent is not None]):
        fields = numeric_origin.of_reduced(watch.layers)
        _send(fields, session.step, batch_origin.current())


def _explain_norm():
    layers = _layers_now()
    fields = numeric_origin.of_reduced(layers)
    if fields is not None:
        if fields["bad_layers"] == fields["layers"]:
            fields["direction"] = "gone"
        else:
            fields["direction"] = "backward"
        _send(fields, session.step, batch_origin.current())
        if not watch.is_in:
            _begin_burst()


# ---- later, from a device


def _read_later(current):
    torch = session.torch
    pairs = [*current.tensors(), *([] if current.loss is None else [current.loss])]
    flat = [tensor.detach().double() for pair in pairs for tensor in pair]
    if not flat or len({tensor.device for tensor in flat}) != 1:
        return
    together = torch.stack(flat)
    slot = torch.empty(together.shape, dtype=together.dtype, pin_memory=together.is_cuda)
    slot.copy_(together, non_blocking=True)
    event = torch.cuda.Event()
    event.record()
    watch.pending.append((current, slot, event))
    while watch.pending and watch.pending[0][2].query():
        passed, numbers, _ = watch.pending.popleft()
        _judge_late(passed, numbers.tolist())
    while len(watch.pending) > MAX_PENDING:
        watch.pending.popleft()


def _judge_late(current, flat):
    values = list(zip(flat[::2], flat[1::2]))
    if current.loss is not None:
        current.loss = values.pop()
    current.fill(values)
    if current.step % COURSE_STEPS == 0:
        _note_course(current)
    if current.loss is not None and numeric_pass.is_bad(current.loss):
        _send(numeric_origin.of_forward(current), current.step, current.batch)
    elif any(numeric_pass.is_bad(extent) for _, extent in current.backward):
        _send_backward(numeric_origin.of_backward(current), current)
    else:
        watch.skips, watch.is_bad = 0, False


# ---- what is sent


def _note_course(current):
    largest = {}
    for call in current.calls:
        for point in call.results:
            largest_ = numeric_pass.largest(point.extent)
            largest[call.layer] = max(largest_, largest.get(call.layer, 0.0))
    watch.course.append((current.step, largest))


def _send(fields, step, batch):
    if fields is None or watch.sent >= MAX_EVENTS or watch.is_bad:
        return
    watch.is_bad = True
    watch.sent += 1
    watch.explained_step = step
    if watch.layers is not None and fields.get("layer") in watch.layers.names:
        index = watch.layers.names.index(fields["layer"])
        course = [
            (at, extremes[index])
            for at, extremes in watch.course
            if index in extremes and at < step
        ]
        if course:
            fields["course_steps"], fields["course_largest"] = map(list, zip(*course))
    if fields["direction"] in ("input", "weights"):
        fields["written_at"] = source.place_matching(_NAN)
    told_fields = {name: value for name, value in fields.items() if value is not None}
    transport.send_event(
        "nan_origin",
        step=step,
        watched=watch.is_armed,
        batch=batch_origin.describe(batch),
        **told_fields,
    )
    if fields["direction"] in ("backward", "gone", "weights"):
        nan_place.begin_of_gradients(step)
