"""The device's clock: CUDA events at the marks of sampled steps, read back two or more steps later,
never waiting.

Events come from a pool and are recorded on the current stream. A step is sampled when the last
sample lies far enough back that recording and reading cost less than 0.1 % of the time. Losses and
gradient norms that live on the GPU travel with the same records: copied to pinned memory without
blocking, read once the copy's event has completed.

Everything here runs in the training thread: a CUDA call from another thread could break a stream
capture.
"""

import math
from collections import deque
from time import monotonic_ns
from typing import Any

from gputop_agent import wire
from gputop_agent.runtime import transport
from gputop_agent.runtime.session import session
from gputop_agent.timing import clock, memory
from gputop_agent.timing.loss_scale import loss_scale

_PERIOD_NS = 40_000_000  # about 30 us of work a sampled step: 0.075 %
# longer steps of many micro-batches have more marks: 6 us each stay under 0.1 %
_NS_PER_MARK = 6_000_000
_SCALAR_PERIOD_NS = 50_000_000
_MAX_MARKS = 192
_MAX_PENDING = 8
_SLOTS = 16
_MIN_AGE_STEPS = 2
_MAX_NONFINITE = 5

BOUNDARY = "boundary"
LOG_PREFIX = "log."  # late scalars of gputop.log(): sent as a log event
#: which duration ends at a mark; what lies between other points belongs to "other"
_ENDS = {
    "data_end": "data",
    "forward_end": "forward",
    "backward_end": "backward",
    "optimizer_end": "optimizer",
}
_AFTER = {
    ("data_end", "forward_begin"): "h2d",
    ("forward_end", "backward_begin"): "loss",
    ("optimizer_begin", "optimizer_begin"): "optimizer",  # gradients are clipped, and then used
}
_PARTS = ("data", "h2d", "forward", "backward", "optimizer", "other")
_NAN = float("nan")


def _no_mark(point):
    """Stands for ``mark`` while CUDA is not in use."""


def _no_scalar(name, tensor):
    """Stands for ``late_scalar`` while CUDA is not in use."""


class Timer:
    """The clock where CUDA is in use; until then its calls do nothing."""

    def __init__(self):
        #: mark(point): "data_end", and the begin and the end ("forward_begin") of forward,
        #: backward and optimizer
        self.mark = _no_mark
        #: late_scalar("loss" | "grad_norm" | LOG_PREFIX + name, tensor)
        self.late_scalar = _no_scalar
        self.clock: Any = None


timer = Timer()


def _nothing(*_):
    """Until somebody registers."""


on_nonfinite = _nothing  # on_nonfinite(step): a loss on the device was not finite, some steps ago


def activate(torch, device_index):
    """Start the device clock; CUDA is initialised, by the caller, and holds the model."""
    if timer.clock is not None:
        return
    memory.activate(torch, device_index)
    pinned = torch.empty((_SLOTS, 8), dtype=torch.uint8, device="cpu", pin_memory=True)
    timer.clock = DeviceClock(
        new_event=lambda: torch.cuda.Event(enable_timing=True),
        capturing=torch.cuda.is_current_stream_capturing,
        slots=list(pinned),
        note_memory=memory.note,
    )
    timer.mark, timer.late_scalar = timer.clock.mark, timer.clock.late_scalar


def on_step_closed(step, t_end_ns, flags):
    """Close the sampled step, read back older ones, decide whether the next step is sampled."""
    if timer.clock is not None:
        timer.clock.on_step_closed(step, t_end_ns, flags)


def read_back(step):
    """Between two windows: read what the device has passed."""
    if timer.clock is not None:
        timer.clock.read_back(step)


def pause():
    """The hooks go out: the step that begins is not sampled."""
    if timer.clock is not None:
        timer.clock.pause()


@session.after_fork
def reset():
    """Stop (in a fork's child, or when the agent gives up)."""
    timer.__init__()


class DeviceStep:
    """What was recorded on the device during one step and has not been read back yet."""

    __slots__ = ("flags", "marks", "scalars", "step", "t_end_ns")

    def __init__(self):
        self.marks = []  # (point, event); the first is the step's beginning
        self.scalars = []  # (name, slot, its value in pinned memory, event)
        self.step = -1
        self.t_end_ns = 0
        self.flags = 0

    def events(self):
        """All events of the sample, in the order recorded."""
        return [event for _, event in self.marks] + [event for *_, event in self.scalars]

    def done(self):
        """Whether the device has passed all of them."""
        return all(event.query() for event in reversed(self.events()))

    def parts_ms(self):
        """Milliseconds by phase, the sum is the step's device time. None: not timed."""
        if len(self.marks) < 2:
            return None
        parts: "dict[str, float]" = dict.fromkeys((*_PARTS, "loss"), 0.0)
        for (before, start), (point, end) in zip(self.marks, self.marks[1:]):
            part = _AFTER.get((before, point)) or _ENDS.get(point, "other")
            parts[part] += start.elapsed_time(end)
        loss_ms = parts.pop("loss")
        is_loss = loss_ms * clock.LOSS_SHARE <= parts["forward"]
        parts["forward" if is_loss else "other"] += loss_ms
        return parts


def _float32(value):
    if not math.isfinite(value) or abs(value) < 3e38:
        return value
    return math.copysign(math.inf, value)


class DeviceClock:
    """Pool of events, the step being recorded, and the steps that wait to be read."""

    def __init__(self, new_event, capturing, slots, note_memory=lambda: None):
        """Events, capture test and pinned tensors of 8 bytes are parameters: tests need no GPU."""
        self._new_event = new_event
        self._capturing = capturing
        self._free_events = []
        self._free_slots = list(slots)
        self._note_memory = note_memory
        self._current = DeviceStep()
        self._timing = False
        self._pending = deque()
        self._period_ns = _PERIOD_NS
        self._last_ns = 0
        self._last_scalar_ns = {}
        self._nonfinite = 0

    def mark(self, point):
        """Record an event if this step is sampled. Does nothing while the stream is captured."""
        if not self._timing:
            return
        if self._capturing() or len(self._current.marks) >= _MAX_MARKS:
            self._abandon_timing()
            return
        self._current.marks.append((point, self._recorded()))
        if point == "forward_end":
            self._note_memory()

    def late_scalar(self, name, tensor):
        """Copy a one-element CUDA tensor to pinned memory without blocking; its value comes with
        the step's record.
        """
        now_ns = monotonic_ns()
        if now_ns - self._last_scalar_ns.get(name, 0) < _SCALAR_PERIOD_NS or not self._free_slots:
            return
        if not tensor.is_cuda or tensor.numel() != 1 or self._capturing():
            return
        self._last_scalar_ns[name] = now_ns
        slot = self._free_slots.pop()
        # of the tensor's own type: to convert it would launch a kernel
        value = slot[: tensor.element_size()].view(tensor.dtype)
        value.copy_(tensor.detach().reshape(1), non_blocking=True)
        self._current.scalars.append((name, slot, value, self._recorded()))

    def on_step_closed(self, step, t_end_ns, flags):
        """See the module's function of the same name."""
        self.mark(BOUNDARY)
        self._queue(step, t_end_ns, flags)
        self._read_oldest(step)
        self._begin(t_end_ns)

    def read_back(self, step):
        """See the module's function of the same name."""
        self._read_oldest(step)

    def pause(self):
        """See the module's function of the same name."""
        self._abandon_timing()

    def _begin(self, t_ns):
        self._timing = t_ns - self._last_ns >= self._period_ns and len(self._pending) < _MAX_PENDING
        if self._timing:
            self._last_ns = t_ns
            self.mark(BOUNDARY)

    def _queue(self, step, t_end_ns, flags):
        sample = self._current
        if not sample.marks and not sample.scalars:
            return
        sample.step, sample.t_end_ns, sample.flags = step, t_end_ns, flags
        self._period_ns = max(_PERIOD_NS, len(sample.marks) * _NS_PER_MARK)
        self._pending.append(sample)
        self._current = DeviceStep()

    def _read_oldest(self, step):
        while self._pending and step - self._pending[0].step >= _MIN_AGE_STEPS:
            if not self._pending[0].done():
                return
            sample = self._pending.popleft()
            try:
                self._emit(sample)
            finally:
                self._give_back(sample)

    def _emit(self, sample):
        parts = sample.parts_ms()
        scalars = {name: value.item() for name, _, value, _ in sample.scalars}
        loss = loss_scale.factor * scalars.get("loss", _NAN)
        grad_norm = _float32(scalars.get("grad_norm", _NAN))
        if parts is None:
            times = [_NAN] * 7
        else:
            times = [parts[name] for name in _PARTS] + [sum(parts.values())]
        record = wire.DEVICE.pack(
            sample.t_end_ns, loss, *times, grad_norm, sample.step & 0xFFFFFFFF, sample.flags
        )
        transport.send_records(wire.MSG_DEVICE, record)
        logged = {
            name[len(LOG_PREFIX) :]: value
            for name, value in scalars.items()
            if name.startswith(LOG_PREFIX)
        }
        if logged:
            transport.send_event("log", step=sample.step, values=logged)
        if "loss" in scalars and not math.isfinite(loss) and self._nonfinite < _MAX_NONFINITE:
            self._nonfinite += 1
            transport.send_event("nonfinite", step=sample.step, value=repr(loss))
            on_nonfinite(sample.step)

    def _abandon_timing(self):
        self._timing = False
        self._free_events.extend(event for _, event in self._current.marks)
        del self._current.marks[:]

    def _recorded(self):
        if self._free_events:
            event = self._free_events.pop()
        else:
            event = self._new_event()
        event.record()
        return event

    def _give_back(self, sample):
        self._free_events.extend(sample.events())
        self._free_slots.extend(slot for _, slot, _, _ in sample.scalars)
