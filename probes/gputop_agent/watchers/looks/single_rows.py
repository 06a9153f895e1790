"""A network that is asked for the rows of a batch one by one, in two steps after a look begins.

Rows of one batch are views of one tensor, and all of them were there before the first call: one
call would do. What is made between two calls, as an environment's next state or the memory of a
recurrent cell, is no such view, and ends the count. Two steps, as forwards between an update and
the next batch are seen before their step is known to have begun; the next look tells of them.
"""

import sys
import weakref
from time import monotonic_ns
from typing import Any

from gputop_agent.runtime import frames, late, modes
from gputop_agent.runtime.session import session
from gputop_agent.timing.step_state import open_step
from gputop_agent.watchers.stacks import loops

MIN_CALLS = 8  # in one step: with fewer there is little to save
STEPS = 2
LOOP_DEPTH = 8  # user frames, from the call outwards, among which the loop over the rows is sought


class SingleRows:
    """The longest run of such calls, of one module and without a backward in between."""

    is_on = False
    """Whether forwards are to be told here."""

    def __init__(self):
        self._last_step = -1
        self._run: Any = None
        self._longest: Any = None

    def begin(self, step):
        """Forwards of this step and the next are told here."""
        self.is_on, self._last_step, self._longest = True, step + STEPS, None

    @modes.unseen
    def before(self, module, args, kwargs):
        """The outermost forward of a module begins."""
        if session.step > self._last_step:
            self.is_on, self._run = False, None
            return
        parts = [part for part in (*args, *kwargs.values()) if _is_tensor(part)]
        if not all(map(late.is_plain, parts)):
            self._run = None
            return
        run = self._run
        if run is None or not run.goes_on(module, parts):
            run = self._run = _Run(module, parts)
        run.calls += 1
        if run.calls == MIN_CALLS:
            run.note_place(module)
        if run.calls >= MIN_CALLS and (self._longest is None or run.calls > self._longest.calls):
            self._longest = run
        run.began_ns = monotonic_ns()

    def after(self):
        """It has ended."""
        if self._run is not None and self._run.began_ns:
            self._run.spent_ns += monotonic_ns() - self._run.began_ns
            self._run.began_ns = 0

    def fields(self):
        """Fields of the event, of the steps after the look before."""
        run = self._longest
        if run is None:
            return {}
        fields = {
            "row_calls": run.calls,
            "row_calls_ms": round(run.spent_ns / 1e6, 3),
            "row_calls_convolve": run.convolves,
        }
        return dict(fields, row_calls_at=run.site) if run.site else fields


class _Run:
    """Calls of one module, each for another row of the same tensors."""

    def __init__(self, module, parts):
        self.calls = 0
        self.spent_ns = self.began_ns = 0
        self.site: Any = None
        self.convolves = False
        self._module = weakref.ref(module)
        self._backwards = open_step.backwards
        self._parts = [_place(part) for part in parts]
        self._rows = {_row_of(parts)}

    def goes_on(self, module, parts):
        """Whether the call asks for a further row, all else being the same."""
        if module is not self._module() or open_step.backwards != self._backwards:
            return False
        places = [_place(part) for part in parts]
        row = _row_of(parts)
        if row is None or row in self._rows or not _are_other_rows(self._parts, places):
            return False
        self._parts = places
        self._rows.add(row)
        return True

    def note_place(self, module):
        """Keep where the loop is, and what decides whether it could be without."""
        self.site = _loop_site()
        convolution = session.torch.nn.modules.conv._ConvNd
        self.convolves = any(isinstance(part, convolution) for part in module.modules())


def _row_of(parts):
    """Where the first tensor begins in memory; None if it is no single row of a larger one."""
    if not parts or not _is_row(parts[0]):
        return None
    return parts[0].data_ptr()


def _is_tensor(part):
    return isinstance(part, session.torch.Tensor)


def _is_row(part):
    """Whether it is one of several rows of the tensor that it is a view of."""
    if part.dim() == 0 or (part.dim() > 1 and part.shape[0] != 1):
        return False
    storage_bytes = part.untyped_storage().nbytes()
    return storage_bytes >= MIN_CALLS * part.numel() * part.element_size()


def _place(part):
    """What tells a row from another: its storage, where it begins there, its shape, its version."""
    storage = part.untyped_storage()
    version = None if part.is_inference() else part._version
    return storage.data_ptr(), part.storage_offset(), tuple(part.shape), version, _is_row(part)


def _are_other_rows(before, places):
    """Whether each tensor is the one of the call before, or another row of the same storage."""
    return len(before) == len(places) and all(
        earlier[0] == place[0] and earlier[2:] == place[2:] and (earlier[1] == place[1] or place[4])
        for earlier, place in zip(before, places)
    )


def _loop_site():
    """The line of the innermost loop's call that leads here, else the line that calls."""
    users = [frame for frame in frames.stack(sys._getframe(1)) if frames.is_user(frame)]
    for frame in users[:LOOP_DEPTH]:
        if loops.headers(frame.f_code, frame.f_lasti):
            return frames.site(frame)
    return frames.site(users[0]) if users else None
