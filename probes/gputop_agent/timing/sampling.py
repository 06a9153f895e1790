"""Whether each step is measured, or windows of some steps at random times.

While steps are long, all hooks are in. Where they are shorter than 5 ms and follow a pattern of
updates that repeats, the hooks are taken out, and put in again for windows of a few steps. In
between only the optimizer's own hook notes the time of each update: steps and wall times stay
exact, everything else of these steps is estimated (``shares``). A window begins and ends where an
update ends, so it holds whole steps, the logging of the one before it included.

Whatever does not fit the pattern puts the hooks in, and steps are measured until it has repeated
itself long enough.
"""

from operator import sub
from time import monotonic_ns
from typing import Any

from gputop_agent import wire
from gputop_agent.runtime import guard, modes, transport
from gputop_agent.runtime.sentinel import sentinel
from gputop_agent.runtime.session import OTHER, UNMEASURED, session
from gputop_agent.timing import clock, device, events, replicas, schedule, steps
from gputop_agent.timing.clock import OPTIMIZER_STEPS, totals
from gputop_agent.timing.own_cost import own_cost
from gputop_agent.timing.shares import Shares
from gputop_agent.timing.step_state import open_step
from gputop_agent.timing.update_pattern import STEP_ENDS, UpdatePattern

SHORT_NS, LONG_NS = 5_000_000, 7_000_000  # steps that begin, and end, being sampled
BLOCK_NS = 100_000_000  # a window in each block of so long: then two lie at most twice that apart
BOOK_EARLY_NS = 20_000_000  # ranks are compared: what they count waits no longer
FIRST_STEP = 120  # looks at gradients are frequent before
CALM_STEPS = 64  # that were measured since something did not fit
ASK_EVERY = 16  # steps
STALL_NS, STALL_STEPS = 50_000_000, 10  # without an update: then the hooks come in
LONG_BOOKINGS = 2  # in a row whose steps are long: then the hooks come in


class Sampler:
    """The one object that knows whether hooks are in, and why."""

    def __init__(self):
        self.pattern = UpdatePattern()
        self.calm_since = 0  # the step after which all fits
        self.shares = Shares()
        self.base = list(totals)  # totals when the step began that is being measured
        self.hook_base = session.hook_ns  # when that step began
        # of the steps since it was asked whether they are short
        self.recent_ns = self.recent_steps = 0
        # -- the window
        self.window_left = 0  # steps; 0: all hooks stay in
        self.window_marks: Any = []  # times of its updates
        self.is_random = True  # it was opened by chance, or all hooks stay in
        self.marks_before: Any = ()  # times of the last updates before it
        self.pending_pair: Any = None  # walls of the last window and of what came before it
        # -- between two windows
        self.until_window = 0  # steps
        self.passed = 0  # steps from the last window to the next one
        self.book_at = 0  # so many noted updates are booked
        self.due_ns = 0  # or at this time
        self.updates = 0  # of optimizers, not booked yet
        self.began_ns = 0  # when the first of the unbooked steps began
        self.long_bookings = 0  # in a row
        self.resuming = False  # the hooks came in in the middle of a step


sampler = Sampler()


# ------------------------------------------------------------------ all hooks are in


def on_closed(step, flags):
    """A step was closed by the hooks."""
    state = sampler
    state.pattern.log.append(STEP_ENDS)
    end_totals = steps.fold.end_totals
    delta = [new - old for new, old in zip(end_totals, state.base)]
    state.base = end_totals
    hook_ns, state.hook_base = session.hook_ns - state.hook_base, session.hook_ns
    wall_ns = sum(delta[: clock.N_PHASES])
    if flags & wire.F_UNSTEADY:
        if not state.window_left:
            state.calm_since = step + 1
    elif min(delta[: clock.N_PHASES]) >= 0:
        if state.is_random:
            # what the hooks took lies in "other"; steps without hooks have none of it
            delta[OTHER] = max(0, delta[OTHER] - hook_ns)
            state.shares.add_step(delta)
        state.recent_ns += wall_ns
        state.recent_steps += 1
    if state.window_left:
        return
    own_cost.hooked_steps += 1
    own_cost.hook_walls.append(hook_ns)
    own_cost.hooked_wall_ns += wall_ns
    if step % ASK_EVERY == 0:
        _ask(step)


def _ask(step):
    """Begin with windows at the next update if the steps are short and plain."""
    state = sampler
    mean_ns = state.recent_ns / max(1, state.recent_steps)
    is_short = state.recent_steps > 0 and mean_ns < SHORT_NS
    state.recent_ns = state.recent_steps = 0
    state.shares.window_ended()
    if not is_short or step < max(FIRST_STEP, state.calm_since + CALM_STEPS) or not _allowed():
        return
    if state.pattern.follow():
        state.window_left = 1
        state.window_marks = []


def _allowed():
    """Whether updates alone tell where steps end, and nothing of ours wants to see each step."""
    if not _is_plain() or open_step.check_stage:
        return False
    if open_step.flags & wire.F_OPT_IN_BACKWARD or modes.watching():
        return False
    return bool(sentinel.events) and not sentinel.by_grads


def _is_plain():
    named = session.manual or session.engine_seen or session.phases_named
    return not (named or session.step_listeners or session.nested_update_seen or sentinel.overdue)


def update_ended(key):
    """The optimizer with this id has stepped, and all hooks are in."""
    state = sampler
    pattern = state.pattern
    pattern.log.append(key)
    if not state.window_left and not state.resuming:
        return
    if key != pattern.ids[pattern.place]:
        if state.resuming and session.update_times:  # counted before, and to be booked as that
            return _end_resuming()
        return _give_up()
    if not pattern.advance():
        return
    now_ns = clock.book()
    if state.resuming:
        session.update_times.append(now_ns)
        _book(now_ns)
        _give_up()
        return
    state.window_marks.append(now_ns)
    if state.window_left > 1:
        state.window_left -= 1
    else:
        _end_window(now_ns)


def _end_window(now_ns):
    """The last step of the window has ended: take the hooks out."""
    state = sampler
    if not _allowed() or state.shares.ordinary.step_ns() > LONG_NS:
        if not open_step.check_stage or not _is_plain():  # a look ends with the next step
            _give_up()
        return
    with session.lock:
        steps.close(now_ns)
        steps.end_record()
        state.window_left = 0
        if steps.fold.window_flags:
            own_cost.measured_steps += len(state.window_marks)
            own_cost.wall_ns += now_ns - state.began_ns
        state.shares.window_ended()
        if state.is_random:
            _note_pair()
        state.is_random, open_step.weight = True, 1.0
        _shut()
    own_cost.switching_ns += monotonic_ns() - now_ns


def _note_pair():
    """Remember the walls of the window that has ended, until those after it are known."""
    state = sampler
    if len(state.window_marks) > 1 and len(state.marks_before) > 2:
        state.pending_pair = _walls(state.window_marks), _walls(state.marks_before)


def _walls(times):
    return list(map(sub, times[1:], times))


def _shut():
    state = sampler
    if session.cuda:
        device.pause()
    state.began_ns = session.last_ns
    clock.rebase(UNMEASURED)
    block = schedule.block_of(state.shares.ordinary.step_ns(), BLOCK_NS)
    state.until_window = state.passed = (
        schedule.window_after(schedule.seed(), session.step, block) - session.step
    )
    steps.fold.probing = False
    steps.fold.window_flags = wire.F_ESTIMATED
    state.updates = state.long_bookings = 0
    _plan_booking()
    for patch in session.removable:
        patch.take_out()
    session.hooks_out = True


def _plan_booking():
    state = sampler
    early = session.world_size > 1
    state.due_ns = session.last_ns + (BOOK_EARLY_NS if early else wire.BOOK_NS)
    state.book_at = state.until_window
    if session.ddp and len(state.pattern.ids) == 1:
        done = totals[OPTIMIZER_STEPS] - replicas.updates_alone()
        state.book_at = min(state.book_at, replicas.next_update(done) - done)


# ------------------------------------------------------------------ between two windows


def count(optimizer):
    """An optimizer has stepped between windows: note when. All there is for most short steps."""
    state = sampler
    pattern = state.pattern
    if id(optimizer) != pattern.ids[pattern.place]:
        return _out_of_turn()
    state.updates += 1
    if not pattern.advance():
        return
    now_ns = monotonic_ns()
    session.update_times.append(now_ns)
    if now_ns >= state.due_ns or len(session.update_times) >= state.book_at or open_step.flags:
        _turn(now_ns)


def update_skipped(optimizer):
    """GradScaler has skipped the update between two windows: a step all the same."""
    count(optimizer)
    sampler.updates -= 1


def unbooked_updates():
    """Updates that were counted and are not in ``clock.totals``."""
    return sampler.updates


def _turn(now_ns):
    """Book what was counted; open the window if it is time."""
    state = sampler
    with session.lock:
        if not session.hooks_out:  # the agent's thread has put them in meanwhile
            return
        clock.book_until(now_ns)
        state.until_window -= len(session.update_times)
        _complete_pair()
        state.marks_before = [state.began_ns, *session.update_times][-9:]
        _note_length()
        _book(now_ns)
        if session.cuda:
            device.read_back(session.step)
        for listener in session.boundary_listeners:
            guard.safely(listener, session.step - 1, transport.unix_ns(now_ns))
        if not _is_plain() or state.long_bookings >= LONG_BOOKINGS:
            _resume()
            _give_up()
        elif state.until_window <= 0:
            _open()
        else:
            _plan_booking()
    own_cost.switching_ns += monotonic_ns() - now_ns


def _note_length():
    """Whether the steps to be booked are long: shares of short ones say nothing about them."""
    state, times = sampler, session.update_times
    if times[-1] - state.began_ns > LONG_NS * len(times):
        state.long_bookings += 1
    else:
        state.long_bookings = 0


def _complete_pair():
    state = sampler
    if state.pending_pair and len(session.update_times) > 2:
        within, before = state.pending_pair
        own_cost.add_pair(within, before, _walls(session.update_times)[:8])
        state.pending_pair = None


def _book(now_ns):
    """Book the steps that were counted, up to ``now_ns``; all time is booked. One with flags has a
    record of its own.
    """
    state = sampler
    times = session.update_times
    if not times:
        return
    own_cost.counted_steps += len(times)
    own_cost.wall_ns += times[-1] - state.began_ns
    steps.book_collections(now_ns, session.step)
    if session.ddp:
        _tell_ddp(times)
    flags = open_step.flags
    if flags & wire.F_UNSTEADY and len(times) > 1:
        _book_plain(times[:-1])
        times = times[-1:]
    open_step.begin_step()
    open_step.unsure = False
    open_step.data_ns = open_step.samples = open_step.tokens = 0
    _book_steps(times, flags, state.updates)
    del session.update_times[:]


def _book_so_far():
    """Book what was counted: the last step ends with the clock or the update, the later."""
    times = session.update_times
    if times and session.last_ns < times[-1]:
        clock.book_until(times[-1])
    elif times:
        times[-1] = session.last_ns
    _book(session.last_ns)


def _book_plain(times):
    """Book steps before the present one, which alone has time that was measured."""
    state = sampler
    plain_ns = times[-1] - state.began_ns
    measured = [new - old for new, old in zip(totals, state.base)][: clock.N_PHASES]
    unmeasured_ns = totals[UNMEASURED] - plain_ns
    for phase, spent_ns in enumerate(measured):
        totals[phase] -= spent_ns
    totals[UNMEASURED] = plain_ns
    _book_steps(times, 0, state.pattern.updates_in(len(times)))
    for phase, spent_ns in enumerate(measured):
        totals[phase] += spent_ns
    totals[UNMEASURED] = unmeasured_ns


def _book_steps(times, flags, updates):
    """Book steps that ended at ``times``: theirs are the unmeasured time and so many updates."""
    state = sampler
    n = len(times)
    walls = list(map(sub, times, [state.began_ns, *times]))
    unmeasured_ns, totals[UNMEASURED] = totals[UNMEASURED], 0
    flags |= state.shares.divide(unmeasured_ns, walls)
    state.shares.count(n)
    totals[OPTIMIZER_STEPS] += updates
    state.updates -= updates
    is_fetching = session.step - open_step.last_fetch_step <= 2
    steps.close_counted(n, times[-1], max(walls), flags)
    state.began_ns = times[-1]
    if is_fetching:
        open_step.last_fetch_step = session.step - 1
    for key in state.pattern.ids:
        events.known_optimizers[key] = session.step
    state.base = list(totals)


def _tell_ddp(times):
    from gputop_agent.timing import comm

    comm.on_steps_counted(session.step, [transport.unix_ns(ended_ns) for ended_ns in times])


def _open():
    """Put the hooks in for a window."""
    state = sampler
    state.window_left = schedule.window_length(
        schedule.block_of(state.shares.ordinary.step_ns(), BLOCK_NS)
    )
    _measure()
    steps.fold.window_flags = wire.F_WINDOW
    state.window_marks = []
    state.base, state.hook_base = list(totals), session.hook_ns
    open_step.weight = (state.window_left + state.passed) / state.window_left


def measure_now():
    """An epoch or an evaluation begins between windows: measure this step, like no other."""
    state = sampler
    if not session.hooks_out or state.pattern.place or session.phase != UNMEASURED:
        return
    with session.lock:
        _book_so_far()
        state.window_left, state.is_random, state.window_marks = 1, False, []
        _measure()
        state.base, state.hook_base = list(totals), session.hook_ns


def _put_hooks_in():
    """Patch torch again; what is booked is the caller's."""
    for patch in session.removable:
        patch.put_in()
    session.hooks_out = False


def _measure():
    """Put the hooks in and book to phases again."""
    _put_hooks_in()
    _measure_again()
    steps.fold.probing = True
    steps.fold.window_flags = 0


# ------------------------------------------------------------------ what does not fit


def _out_of_turn():
    """Another optimizer stepped than the pattern has: its step ends here."""
    now_ns = clock.book()
    with session.lock:
        session.update_times.append(now_ns)
        sampler.updates += 1
        _book(now_ns)
        _resume()
        _give_up()


def _resume():
    """Put the hooks in, in the middle of a step."""
    if session.hooks_out:
        _measure()


def _end_resuming():
    """The step in which the hooks came in ends, and not by an update of the pattern: the weights
    changed within a long one. Those before it end where they were counted; all of it is measured.
    """
    times = session.update_times
    with session.lock:
        if times:
            own_cost.counted_steps += len(times)
            own_cost.wall_ns += times[-1] - sampler.began_ns
            if session.ddp:
                _tell_ddp(times)
            _book_plain(times)
            del times[:]
        _give_up()


def _give_up():
    """Measure each step again, until all has fitted for a while."""
    state = sampler
    state.window_left, state.resuming, state.is_random = 0, False, True
    open_step.weight = 1.0
    state.pattern.forget()
    state.calm_since = session.step
    state.marks_before, state.pending_pair = (), None
    state.recent_ns = state.recent_steps = 0
    steps.end_record()
    steps.fold.window_flags = 0
    _measure_again()


def _measure_again():
    """What follows is measured; what was not since the last booking was our own work."""
    clock.rebase(OTHER)
    totals[OTHER] += totals[UNMEASURED]
    totals[UNMEASURED] = 0


def is_resuming():
    """Whether the hooks came in in the middle of the present step."""
    return sampler.resuming


def watch(now_ns):
    """From the agent's thread: put the hooks in where no update came for long."""
    state = sampler
    if not session.hooks_out:
        return
    if session.update_times:
        last_ns = session.update_times[-1]
    else:
        last_ns = state.began_ns
    limit_ns = max(STALL_NS, STALL_STEPS * state.shares.ordinary.step_ns())
    if now_ns - last_ns > limit_ns and session.lock.acquire(False):
        try:
            if session.hooks_out:
                state.resuming = True
                _put_hooks_in()
        finally:
            session.lock.release()


def settle():
    """Book what was counted and put the hooks in: the process ends, or the script says steps."""
    if not (session.hooks_out or sampler.resuming):
        return
    with session.lock:
        _book_so_far()
        _resume()
        _give_up()


def mend():
    """A hook was broken off: steps that were counted stay counted."""
    state = sampler
    n = len(session.update_times)
    del session.update_times[:]
    totals[OTHER] += totals[UNMEASURED]
    totals[OPTIMIZER_STEPS] += state.updates
    totals[UNMEASURED] = state.updates = 0
    if n:
        steps.fold.end_totals, steps.fold.end_ns = totals[:], session.last_ns
        steps.fold.last_step = session.step + n - 1
        steps.fold.n_steps += n
        session.step += n
    if session.hooks_out:
        _put_hooks_in()
    state.__init__()
    steps.fold.window_flags = 0


@session.after_fork
def reset():
    """In a forked child: the hooks are in until it has trained for a while."""
    _put_hooks_in()
    sampler.__init__()


def install(torch):
    """Register with what closes steps."""
    steps.on_closed, steps.on_mend, steps.on_unmeasured = on_closed, mend, _end_resuming
