"""Optimizer steps, through torch's own global step hooks."""

import sys
from _thread import get_ident
from collections import OrderedDict
from time import monotonic_ns
from typing import Any

from gputop_agent import activation, checkup, clock, device, events, frames, guard, lane, modes, roots, steps, wire
from gputop_agent.clock import MICRO_BATCHES, OPTIMIZER_STEPS, stack, totals
from gputop_agent.cycle import C
from gputop_agent.lane import L, marks
from gputop_agent.sentinel import sentinel
from gputop_agent.state import H2D, OPTIMIZER, OTHER, S
from gputop_agent.steps import F

is_compiling: Any = None
_NOTHING: Any = None.__init__  # takes anything and does nothing, without a frame of Python's
_tables = []  # of both kinds of hooks


class Table(OrderedDict):
    """Lies empty in the place of torch's own table of hooks while steps are thin.

    Torch's table is not emptied, as another thread may be going through it. A hook that somebody registers meanwhile
    goes there, which then is back in its place.
    """

    def __init__(self, module, name, key, hook):
        super().__init__()
        self.module, self.name, self.key, self.hook = module, name, key, hook
        self.table = getattr(module, name)

    def bypass(self, on):
        """Keep torch from calling our hook, or let it."""
        alone = len(self.table) == 1
        if self.key in self.table:
            self.table[self.key] = _NOTHING if on and not alone else self.hook
            setattr(self.module, self.name, self if on and alone else self.table)

    def __setitem__(self, key, hook):
        """Somebody registers a hook."""
        self.table[key] = hook
        self.bypass(True)

    def __contains__(self, key):
        """Asked by the handle of a hook that was registered here."""
        return key in self.table

    def __delitem__(self, key):
        """The handle removes it."""
        del self.table[key]


def install(torch):
    """Register the hooks; they see every subclass of ``torch.optim.Optimizer``."""
    global is_compiling
    is_compiling = torch.compiler.is_compiling
    module = sys.modules["torch.optim.optimizer"]
    del _tables[:]
    for register, name, hook in (
        (module.register_optimizer_step_pre_hook, "_global_optimizer_pre_hooks", before_step),
        (module.register_optimizer_step_post_hook, "_global_optimizer_post_hooks", after_step),
    ):
        handle = register(hook)
        S.undo.append(handle.remove)
        _tables.append(Table(module, name, handle.id, hook))


def bypass(on):
    """Keep torch from calling the hooks, or let it."""
    for table in _tables:
        table.bypass(on)


def before_step(optimizer, args, kwargs):
    """Begin the phase. The common case, a known optimizer with nothing around it, is written out."""
    try:
        try:
            if is_compiling():  # first: dynamo traces into hooks, and an array would end its graph
                return None
            if len(L.marks) & 7 == 6 and id(optimizer) == L.optimizer_id:
                L.note(L.now())
                return None
            if marks:
                if get_ident() == S.thread_ident or activation.adopt(by_backward=False):
                    lane.leave()
                    _begin(optimizer)
            elif (
                not stack
                and S.phase == OTHER
                and not C.pending
                and not C.look
                and id(optimizer) in S.optimizers
                and roots.passes
                and get_ident() == S.thread_ident
            ):
                now = monotonic_ns()
                totals[OTHER] += now - S.last_ns
                S.last_ns = now
                stack.append(OTHER)
                S.phase = OPTIMIZER
                C.in_optimizer, C.optimizer_depth = 1, 0
            elif get_ident() == S.thread_ident or activation.adopt(by_backward=False):
                _begin(optimizer)
        except Exception:
            guard.failed("optimizer pre hook")
        return None
    except BaseException as error:
        guard.vanish(error, "step")
        raise


def after_step(optimizer, args, kwargs):
    """End the phase; the step is over at the next event."""
    try:
        try:
            if is_compiling():
                return None
            if len(L.marks) & 7 == 7:  # another one's, or one inside this, would have ended the lane when it began
                L.note(L.now())
            elif get_ident() == S.thread_ident:
                _end(optimizer)
        except Exception:
            guard.failed("optimizer post hook")
        return None
    except BaseException as error:
        guard.vanish(error, "step")
        raise


def _begin(optimizer):
    if not C.in_optimizer:
        if not C.in_backward:
            if S.phase == H2D:
                clock.switch(OTHER)
            events.optimizer_begins(id(optimizer))
        if id(optimizer) not in S.optimizers or not roots.passes:
            if roots.new_optimizer(optimizer):
                steps.book_agent_time(roots.discover)
        if C.look:
            checkup.before_update(optimizer)
        C.optimizer_depth = len(clock.stack)
    C.in_optimizer += 1
    clock.enter(OPTIMIZER)


def _end(optimizer):
    if marks:
        lane.leave()
    if C.in_optimizer != 1:
        if C.in_optimizer:
            C.in_optimizer -= 1
            clock.leave()
        return
    C.in_optimizer = 0
    if len(stack) == 1 and not C.optimizer_depth:
        now = monotonic_ns()
        totals[S.phase] += now - S.last_ns
        S.last_ns = now
        S.phase = stack.pop()
    else:
        clock.unwind(C.optimizer_depth)
    if C.look:
        checkup.after_update(optimizer)
    key = id(optimizer)
    C.stepped.add(key)
    events.known_optimizers[key] = S.step
    if sentinel.unseen != 1 or sentinel.overdue or sentinel.longest < 1 or not sentinel.events:
        sentinel.optimizer_stepped()
    else:
        sentinel.unseen = 0
    totals[OPTIMIZER_STEPS] += 1
    if C.grads and not C.backwards:
        totals[MICRO_BATCHES] += 1
        C.grads = 0
    if C.in_backward:
        C.flags |= wire.F_OPT_IN_BACKWARD
    else:
        if not C.pending:
            C.pending, C.cut = True, None
        if S.cuda:
            device.mark("optimizer_end")
    lr = optimizer.param_groups[0].get("lr")
    if type(lr) is float:
        F.lr = lr
    elif lr is not None:
        _note_unusual_lr(lr)


def step_seen():
    """An update was made or skipped: the next event closes the step."""
    if not C.pending:
        C.pending, C.cut = True, None
    if S.cuda:
        device.mark("optimizer_end")


@modes.unseen
def _note_unusual_lr(lr):
    if isinstance(lr, int) or (type(lr) is S.torch.Tensor and lr.is_cpu and lr.numel() == 1):
        F.lr = float(lr)


def heal():
    """Torch runs no post hook when a step raises: leave the optimizer if none of its frames is on the stack."""
    frame = sys._getframe(1)
    while frame is not None:
        if frames.is_optimizer_step(frame):
            return
        frame = frame.f_back
    C.in_optimizer = 0
    clock.unwind(C.optimizer_depth)
