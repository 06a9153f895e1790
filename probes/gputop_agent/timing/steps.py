"""Closes steps, folds fast ones and packs the records.

A record stands for all steps that ended since the last record, which is sent once 20 ms have
passed: at most 50 records a second, however fast the loop. A step whose flags make it unsteady is
never folded with others.
"""

import math
from _thread import get_ident
from time import monotonic_ns, thread_time_ns
from typing import Any

from gputop_agent import wire
from gputop_agent.runtime import guard, interrupts, modes, transport
from gputop_agent.runtime.session import OTHER, UNMEASURED, session
from gputop_agent.timing import batch, clock, comm, device, memory
from gputop_agent.timing.clock import (
    AGENT_NS,
    COMPUTE_CPU_NS,
    GC_NS,
    MICRO_BATCHES,
    N_PHASES,
    OPTIMIZER_STEPS,
    SAMPLES,
    TOKENS,
    totals,
)
from gputop_agent.timing.loss_scale import loss_scale
from gputop_agent.timing.step_state import NAN, NO_GAP, Cut, open_step
from gputop_agent.wire import F_NO_FORWARD, F_UNSTEADY, FOLD_NS

STALE_NS = 200_000_000
LONG_PAUSE_NS = 10_000_000  # of the garbage collector: told of
NOTABLE_NS = 1_000_000  # work of ours that took longer makes a step unsteady
MAX_PROBED_STEPS = 8  # CPU time is read (1.8 us a step) while a record stands for no more than this
MANY_PROBES = 16  # forwards and backwards in a record: with more, three of four are not probed
RESTS = 3
LATE = 8  # a record whose end is past by an eighth of what it stands for is sent late
MAX_NONFINITE_EVENTS = 5
# times the last gradient norm of a record: then the largest one is told, so that folding hides no
# jump
STANDS_OUT = 4
_UINT32 = 0xFFFFFFFF
_FLOAT32_MAX = 3.4e38


def _nothing(*_):
    """Until somebody registers."""


on_closed = _nothing  # on_closed(step, flags): a step was closed by the hooks
on_first_step = _nothing  # on_first_step(): say what this process is
on_manual_start = _nothing  # on_manual_start(now_ns): gputop.step() is the first sign of a training
on_check_due = _nothing  # on_check_due(step): a step at or after ``open_step.check_due`` has ended
on_mend = _nothing  # on_mend(): a hook was broken off
on_unmeasured = _nothing  # on_unmeasured(): the step that ends began while the hooks were out


class Fold:
    """The steps that ended since the last record."""

    def __init__(self):
        self.begin_totals = list(totals)  # when the last record ended
        self.began_ns = self.end_ns = session.last_ns
        self.end_totals = self.begin_totals  # at the end of the last step
        self.n_steps = 0
        self.last_step = 0  # index of the last of them
        self.flags = 0
        self.wall_max_ns = 0
        self.loss = self.loss_max = self.grad_norm = self.grad_norm_max = NAN
        self.lr = self.loss_scale = NAN  # set by the optimizer hooks
        self.lr_values = 0  # in the optimizer that has this rate, the largest since the last record
        self.cpu_base_ns = thread_time_ns()  # -1: not known
        self.cpu_upto_ns = -1
        self.probing = True
        self.probes = 0  # forwards and backwards whose CPU time was read (2.4 us each)
        self.resting = 0  # records to come that are not probed, for their many calls
        self.window_flags = 0  # of each record: F_WINDOW, F_ESTIMATED or none
        self.memory: Any = (-1, -1, -1, -1)
        self.loss_step = -1  # the last one whose loss was read
        self.nonfinite_events = 0
        self.hello_ns = 0

    def probe(self):
        """Return the thread's CPU time where a forward or backward begins; 0: it is not read."""
        if not self.probing:
            return 0
        self.probes += 1
        return thread_time_ns()

    def choose_probing(self):
        """Decide whether the next record has its CPU time read, by the one that ends."""
        if self.probes > MANY_PROBES:
            self.resting = RESTS
        elif self.resting:
            self.resting -= 1
        self.probes = 0
        self.probing = self.n_steps <= MAX_PROBED_STEPS and not self.resting


fold = Fold()


@session.after_fork
def reset():
    """Start from zero: in a forked child, and when training begins."""
    fold.__init__()


def close(now_ns, end_totals=None, cpu_ns=-1):
    """End the step at ``now_ns``, up to which all time is booked in ``end_totals`` (or now).

    ``cpu_ns`` is the thread's CPU time at that moment, if it has passed.
    """
    if totals[UNMEASURED]:
        on_unmeasured()
        now_ns = session.last_ns
    step = session.step
    is_first = step == 0
    flags = open_step.flags
    if not open_step.forwards:
        flags |= F_NO_FORWARD
    if is_first:
        flags |= wire.F_FIRST
    paused_ns = book_collections(now_ns, step) if clock.collections_ended else 0
    if end_totals:
        end_totals[GC_NS] += paused_ns
    loss, loss_flag = _loss_of(step)
    flags |= loss_flag
    alone = flags & F_UNSTEADY  # in a record of its own
    with session.lock:
        if alone and fold.n_steps:
            _emit()
        _take_in(step, now_ns, end_totals or totals[:], flags, loss)
        if fold.probing:
            fold.cpu_upto_ns = thread_time_ns() if end_totals is None else cpu_ns
        if alone or now_ns - fold.began_ns >= FOLD_NS:
            if is_first and not session.hello_sent:
                say_hello()
            _emit()
    open_step.begin_step()
    if is_first:
        totals[AGENT_NS] += fold.hello_ns
        open_step.flags |= wire.F_AGENT
    if session.ddp or session.cuda or session.step_listeners or session.boundary_listeners:
        _call_listeners(step, transport.unix_ns(now_ns), flags)
    if step >= open_step.check_due:
        guard.safely(on_check_due, step)
    session.step = step + 1
    on_closed(step, flags)


def close_late():
    """End the last step with the last thing seen: what the script did after training is no part of
    it, nor is the CPU time that this took.
    """
    end_ns = session.last_ns
    late_ns = monotonic_ns() - end_ns
    is_known = late_ns * LATE <= end_ns - fold.end_ns
    close(end_ns, totals[:], thread_time_ns() if is_known else -1)


def _loss_of(step):
    """Return the mean of the losses read in the step, before they were divided by their number; NaN
    without any; and ``F_NONFINITE`` or 0.
    """
    if loss_scale.steps_left:
        loss_scale.step_ends(open_step.backwards)
    if not open_step.loss_count:
        return NAN, 0
    loss = loss_scale.factor * open_step.loss_sum / open_step.loss_count
    last_read_step, fold.loss_step = fold.loss_step, step
    if loss - loss == 0:
        return loss, 0
    _report_nonfinite(step, loss, last_read_step)
    return loss, wire.F_NONFINITE


def _take_in(step, now_ns, end_totals, flags, loss):
    """Add the step to the open record."""
    wall_ns = now_ns - fold.end_ns
    if wall_ns > fold.wall_max_ns:
        fold.wall_max_ns = wall_ns
    fold.end_totals, fold.end_ns, fold.last_step = end_totals, now_ns, step
    clock.floor[:] = end_totals
    fold.n_steps += 1
    # counted: what interrupts the rest does not have it counted again
    open_step.pending, open_step.backwards = False, 0
    fold.flags |= flags
    fold.loss, fold.grad_norm = loss, open_step.grad_norm
    # negated: the largest so far is NaN where there is none
    if open_step.loss_count and not loss <= fold.loss_max:
        fold.loss_max = loss
    if not open_step.grad_norm <= fold.grad_norm_max:
        fold.grad_norm_max = open_step.grad_norm


def close_counted(n, end_ns, wall_max_ns, flags):
    """Book ``n`` counted steps, the last ended at ``end_ns``, and end a record; time is booked."""
    with session.lock:
        fold.wall_max_ns = wall_max_ns
        fold.end_totals, fold.end_ns, fold.last_step = totals[:], end_ns, session.step + n - 1
        clock.floor[:] = fold.end_totals
        fold.n_steps += n
        fold.flags |= flags
        fold.loss = fold.grad_norm = NAN
        fold.probing = False
        _emit()
        session.step += n


def end_record():
    """Send what is folded: what follows is measured in another way."""
    with session.lock:
        if fold.n_steps:
            _emit()


def book_collections(until_ns, step):
    """Count the garbage collector's pauses until then; tell of long ones. Returns nanoseconds."""
    spent_ns = 0
    for pause_ns in clock.collected(until_ns):
        spent_ns += pause_ns
        if pause_ns >= LONG_PAUSE_NS:
            transport.send_event("gc", step=step, duration_ms=round(pause_ns / 1e6, 3))
    totals[GC_NS] += spent_ns
    return spent_ns


def close_at_cut():
    """End the step at ``open_step.cut``; what came after belongs to the next one."""
    cut: Cut = open_step.cut
    later_flags = open_step.flags & ~cut.flags
    later_loss_sum = open_step.loss_sum - cut.loss_sum
    later_loss_count = open_step.loss_count - cut.loss_count
    later_backwards = open_step.backwards - cut.backwards
    forwards, inputs = open_step.forwards, open_step.inputs
    model_forwards = open_step.model_forwards
    open_step.flags = cut.flags
    open_step.loss_sum, open_step.loss_count = cut.loss_sum, cut.loss_count
    close(cut.end_ns, cut.totals, cut.cpu_ns)
    open_step.flags |= later_flags
    open_step.forwards, open_step.inputs = forwards, inputs
    open_step.model_forwards = model_forwards
    open_step.loss_sum, open_step.loss_count = later_loss_sum, later_loss_count
    open_step.backwards = later_backwards


def cut_here():
    """Remember this moment as a possible end of the step."""
    if totals[UNMEASURED]:
        on_unmeasured()
    open_step.cut = Cut(
        clock.book(),
        totals[:],
        open_step.flags,
        open_step.loss_sum,
        open_step.loss_count,
        open_step.backwards,
        thread_time_ns() if fold.probing else -1,
    )
    clock.floor[:] = open_step.cut.totals


def manual_step():
    """``gputop.step()``: the step ends here. From the first call on, nothing else ends one."""
    if not session.manual:
        session.manual = True
        if not session.thread_ident:
            on_manual_start(monotonic_ns())
            return
    now_ns = clock.book()
    if open_step.unsure:
        open_step.belongs_to_evaluation()
    open_step.flags |= wire.F_MANUAL
    close(now_ns)


def flush_stale(now_ns):
    """From the agent's thread: send finished steps that wait while a long one goes on."""
    if fold.n_steps and now_ns - fold.end_ns >= STALE_NS and session.lock.acquire(False):
        try:
            if fold.n_steps:
                _emit()
        finally:
            session.lock.release()


def book_agent_time(function, *args):
    """Run rare work of ours on the training thread as "other", with a flag if it took long."""
    before = clock.enter(OTHER)
    guard.safely(modes.unseen(function), *args)
    spent_ns = clock.leave() - before
    totals[AGENT_NS] += spent_ns
    if spent_ns >= NOTABLE_NS:
        open_step.flags |= wire.F_AGENT


def say_hello():
    """Reach the recorder and say what this process is. On the training thread."""
    transport.connect()
    before = clock.book()
    guard.safely(modes.unseen(on_first_step))
    fold.hello_ns = clock.book() - before


def mend():
    """A hook was broken off: nothing is open any more, and the time up to now is booked."""
    open_step.in_forward = open_step.in_backward = False
    open_step.in_optimizer, open_step.gap_phase, open_step.cut = 0, NO_GAP, None
    if fold.n_steps:
        session.step = max(session.step, fold.last_step + 1)
    on_mend()
    del clock.stack[:]
    session.phase = OTHER
    now_ns = monotonic_ns()
    totals[OTHER] += (
        now_ns - fold.began_ns - sum(totals[:N_PHASES]) + sum(fold.begin_totals[:N_PHASES])
    )
    session.last_ns = now_ns


def _call_listeners(step, t_end_ns, flags):
    comm.on_step_closed(step, t_end_ns)
    if session.cuda:
        device.on_step_closed(step, t_end_ns, flags)
    for listener in (*session.step_listeners, *session.boundary_listeners):
        guard.safely(listener, step, t_end_ns)


def _emit():
    """Pack and hand over the fold. Call under ``session.lock``, from either thread."""
    by_training_thread = get_ident() == session.thread_ident
    cpu_ns = _cpu_ns(by_training_thread)
    if by_training_thread:
        if not session.cuda:
            _look_for_cuda()
        fold.memory = memory.read()
    allocated, reserved, peak, rss = fold.memory
    delta = [new - old for new, old in zip(fold.end_totals, fold.begin_totals)]
    if min(delta[:N_PHASES]) < 0:
        delta[:N_PHASES] = _levelled(delta[:N_PHASES])
    grad_norm = fold.grad_norm
    if fold.grad_norm_max > STANDS_OUT * grad_norm:
        grad_norm = fold.grad_norm_max
    record = wire.STEP.pack(
        transport.unix_ns(fold.end_ns),
        fold.end_ns - fold.began_ns,
        *delta[:N_PHASES],
        fold.wall_max_ns,
        cpu_ns,
        delta[COMPUTE_CPU_NS] if fold.probing else -1,
        delta[GC_NS],
        delta[AGENT_NS],
        allocated,
        reserved,
        peak,
        rss,
        fold.loss,
        fold.loss_max,
        _float32(grad_norm),
        _float32(fold.lr),
        _float32(fold.loss_scale),
        fold.last_step & _UINT32,
        fold.n_steps,
        delta[SAMPLES] & _UINT32,
        delta[TOKENS] & _UINT32,
        delta[MICRO_BATCHES] & _UINT32,
        delta[OPTIMIZER_STEPS] & _UINT32,
        fold.flags | fold.window_flags,
        session.dropped & _UINT32,
        batch.take_crc() & _UINT32,
    )
    fold.choose_probing()
    fold.begin_totals, fold.began_ns = fold.end_totals, fold.end_ns
    fold.n_steps = fold.flags = fold.wall_max_ns = fold.lr_values = 0
    fold.loss_max = fold.grad_norm_max = NAN
    transport.send_step(record, fold.end_ns)


def _levelled(phases):
    """The same sum without a negative part: what one has too little is taken from the largest."""
    owed = sum(part for part in phases if part < 0)
    levelled = [max(0, part) for part in phases]
    while owed < 0 and max(levelled) > 0:
        largest = levelled.index(max(levelled))
        taken = min(levelled[largest], -owed)
        levelled[largest] -= taken
        owed += taken
    return levelled


def _cpu_ns(by_training_thread):
    """CPU time of the fold; -1 where no step's end was probed, and the other thread asks or asks
    late: a rollout may lie behind the fold's end.
    """
    if not fold.probing:
        late_ns = monotonic_ns() - fold.end_ns
        at_its_end = by_training_thread and late_ns * LATE <= fold.end_ns - fold.began_ns
        fold.cpu_upto_ns = thread_time_ns() if at_its_end else -1
    is_known = fold.cpu_base_ns >= 0 and fold.cpu_upto_ns >= 0
    cpu_ns = fold.cpu_upto_ns - fold.cpu_base_ns if is_known else -1
    fold.cpu_base_ns = fold.cpu_upto_ns
    return cpu_ns


def _look_for_cuda():
    cuda = session.torch.cuda
    if cuda.is_initialized():
        session.cuda = True
        guard.safely(device.activate, session.torch, cuda.current_device())


def _report_nonfinite(step, loss, before):
    if fold.nonfinite_events < MAX_NONFINITE_EVENTS:
        fold.nonfinite_events += 1
        transport.send_event("nonfinite", step=step, value=repr(loss), unread=step - before - 1)


def _float32(value):
    if abs(value) < _FLOAT32_MAX or value != value:
        return value
    return math.copysign(math.inf, value)


transport.on_tick = flush_stale
interrupts.mend_step = mend
