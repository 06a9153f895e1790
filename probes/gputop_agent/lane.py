"""The fast lane: a plain step leaves eight times and is booked later, together with its neighbours.

Torch's code between two of our hooks empties the caches, so what a hook costs is what it touches: 50 us for a step
whose code takes 8 us when it is run again at once. While each step is one fetch, forward, backward and update
with nothing else around them, the hooks note the time and no more. ``settle`` books what was noted as the general path
would have: every 100 ms, the records of five times 20 ms one after the other, and before anything that comes out of
turn.
"""

from operator import sub
from time import monotonic_ns

from . import batch, events, modes, steps, thin
from .clock import COMPUTE_CPU_NS, MICRO_BATCHES, OPTIMIZER_STEPS, SAMPLES, TOKENS, stack, totals
from .cycle import C
from .sentinel import sentinel
from .state import BACKWARD, DATA, FORWARD, OPTIMIZER, OTHER, L, S
from .steps import FOLD_NS, F

marks = L.marks
segments = []  # stretches of steps that ended: (thin, times with that of the end, ``thin.reading`` if a record ends)
sizes = []  # of the batches of the steps noted: a shape, or what ``batch.count`` says
losses = []  # of the steps noted, of thin ones each ``thin.LOSS_EVERY``-th; None: not known
cpu_marks = []  # while ``L.probing``: the thread's CPU times at the beginnings and ends of forward and backward
LOSS_SHARE = 4  # a loss computed outside the model takes at most a quarter of its forward
PAUSE_STEPS = 50  # so long the general path runs when a step was not plain
BULK_NS = 100_000_000  # so long at most the steps wait to be booked
EARLY_STEPS = 120  # those among which looks at gradients are frequent wait no longer than a record
_PHASES = (OTHER, DATA, OTHER, FORWARD, OTHER, BACKWARD, OTHER, OPTIMIZER)  # by how many of a step's times are noted


def may_begin():
    """Whether the steps have been plain so far. Asked after a step was closed, with nothing open."""
    if S.step < max(L.from_step, PAUSE_STEPS):
        return False
    if S.step > C.look_due:
        steps.look_closer(S.step - 1)
    L.from_step = S.step + PAUSE_STEPS
    events.forget_optimizers()
    busy = S.cuda or modes.watching() or S.ddp or S.step_listeners or S.manual or S.want_batch
    plain = not (busy or C.flags or C.look or stack)
    oldest = S.step - events.WAIT_STEPS
    used = [key for key, seen in events.known_optimizers.items() if seen > oldest]
    if not plain or len(used) != 1 or not sentinel.events or sentinel.overdue or sentinel.unseen:
        return False
    L.from_step = 0
    L.optimizer_id = used[0]
    return True


def begin(now_ns, iterator_id):
    """The fetch that begins now is the first that is only noted."""
    if iterator_id != L.iterator_id:
        L.most = 0
    L.ident, L.iterator_id, L.probing = S.thread_ident, iterator_id, F.probing
    L.until_ns = L.record_ns = F.began_ns + FOLD_NS
    at_once = S.world_size > 1 or S.step < EARLY_STEPS  # ranks are compared by the last step that each has told of
    L.settle_ns = now_ns + (FOLD_NS if at_once else BULK_NS)
    S.phase = OTHER
    thin.begin(now_ns)
    marks.append(now_ns)


def cut(now_ns):
    """The fetch that begins now is the first of another record or stretch. Returns whether it is noted like others."""
    if now_ns >= L.settle_ns or not thin.in_order(len(marks)):
        return False
    times, ended = marks[:], now_ns >= L.record_ns
    times.append(now_ns)
    segments.append((L.thin, times, thin.reading(now_ns) if ended else None))
    del marks[:]
    if ended:
        L.record_ns = now_ns + FOLD_NS
    L.until_ns = L.record_ns
    if L.sampling:
        thin.turn()
    return True


def note_batch(fetched):
    """Count a batch that does more than leave its shape: the first, and each that is looked at closely."""
    if fetched is None:
        return False
    sizes[:] = batch.count_noted(sizes)
    sizes.append(batch.count(fetched))
    L.batch_type, L.path, left = batch.plan_ahead(fetched)
    L.most = len(sizes) + left
    return True


def phase(frame=None):
    """What the training thread does, for the agent's own thread; ``frame`` is where it stands."""
    noted = len(marks)
    if not noted:
        return S.phase
    return thin.phase(noted, frame) if L.thin else _PHASES[noted & 7]


def step():
    """Index of the step being timed."""
    return S.step + whole_steps(1)


def hurry(now_ns):
    """From the agent's thread: what was noted waits too long, so the next fetch asks what the time is."""
    if L.thin and now_ns > L.until_ns:
        L.thin_id = 0


def whole_steps(besides=0):
    """How many steps have been noted, without so many of the present one's marks."""
    ended = sum(len(times) // (thin.STRIDE if is_thin else 8) for is_thin, times, _ in segments)
    return ended + max(0, len(marks) - besides) // (thin.STRIDE if L.thin else 8)


def leave():
    """Settle because something came out of turn, and take the general path for a while."""
    settle()
    L.from_step = S.step + PAUSE_STEPS
    thin.put_off()


def settle(end_ns=0):
    """Book what was noted; phases that are open are open in the general path afterwards.

    ``end_ns`` is the time of the fetch that begins now, if one does: it ends the last step.
    """
    if not marks:
        return
    was_thin, stride = L.thin, thin.STRIDE if L.thin else 8
    times, ended = marks[:], segments[:]
    if end_ns:
        times.append(end_ns)
    whole = (len(times) - 1) // stride  # the fetch that begins ends the step before
    ended.append((L.thin, times[: stride * whole + 1], None))
    updates, begun = thin.end() if L.thin else (whole, whole)
    partly = was_thin and len(times) == stride * whole + thin.STRIDE and begun > whole
    now = thin.reading(monotonic_ns()) if any(is_thin for is_thin, _, _ in ended) else None
    noted = Noted(batch.count_noted(sizes), losses[:], cpu_marks[:])
    reset()
    thin.T.sizes.extend(noted.sizes[-thin.KNOWN_SIZES :])
    S.last_ns, before = ended[0][1][0], thin.T.began
    _note_lr()
    L.settling = True
    final = max((i for i, (_, span, _) in enumerate(ended) if len(span) > 1), default=0)
    steps_after = S.step + sum((len(span) - 1) // (thin.STRIDE if is_thin else 8) for is_thin, span, _ in ended)
    try:
        for i, (is_thin, span, reading) in enumerate(ended):
            last = i + 1 == len(ended)
            if len(span) > 1 or F.n_steps or (last and len(times) > stride * whole + 1):
                F.probing = L.probing
            paused_ns, cpu_ns = steps.book_collections(span[-1], S.step), reading[1] if reading else -1
            if is_thin:
                after = next((one for _, _, one in ended[i:] if one), now)
                seen = (updates, begun - partly - whole) if last else (len(span), 0)
                thin.book(span, noted, (before, after), paused_ns, i == final, *seen)
            elif len(span) > 1:
                _book_many(span, noted, cpu_ns, reading is not None or i == final)
            if reading:
                thin.learn_cpu(before, reading)
                before = reading
        if now:
            thin.learn_cpu(thin.T.began, now)
        if updates - partly not in (whole - partly, whole) or begun - partly != whole:
            L.from_step = S.step + PAUSE_STEPS
            thin.put_off()
        if not end_ns:
            L.cpu_ns = noted.cpu[-1] if len(noted.cpu) & 1 else 0
            noted.book_cpu(len(noted.cpu))
            rest = times[stride * whole :]
            if was_thin:
                thin.replay(rest, noted, updates > whole, partly)
            else:
                _replay(rest, noted.sizes, noted.losses)
    except BaseException:  # a signal's handler raised
        _count_the_rest(steps_after - S.step)
        raise
    finally:
        L.settling = False


def mend():
    """A hook was broken off: book what was noted, as far as the notes agree."""
    del cpu_marks[:]
    L.probing = False
    leave()


def _count_the_rest(n):
    """Booking was broken off: steps that were noted and not booked are counted, whatever they were."""
    if n > 0:
        F.upto, F.end_ns, F.last_step = totals[:], S.last_ns, S.step + n - 1
        F.n_steps += n
        S.step += n


class Noted:
    """What was noted beside the times. What is taken is gone."""

    def __init__(self, sizes, losses, cpu):
        self.sizes, self.losses, self.cpu = sizes, losses, cpu

    def take(self, steps, values):
        """``(sizes, losses)`` of the next ``steps`` steps, of which ``values`` have a loss."""
        taken = self.sizes[:steps], self.losses[:values]
        del self.sizes[:steps], self.losses[:values]
        return taken

    def book_cpu(self, n):
        """The next ``n`` CPU times: of whole forwards and backwards, and of one that is open (booked when it ends)."""
        times = self.cpu[:n]
        del self.cpu[:n]
        totals[COMPUTE_CPU_NS] += sum(times[1::2]) - sum(times[: len(times) // 2 * 2 : 2])


def _note_lr():
    """The optimizer's hooks do not look at it in the lane; a look at each booking is enough for a schedule."""
    reference = S.optimizers.get(L.optimizer_id)
    optimizer = reference() if reference is not None else None
    if optimizer is not None:
        lr = optimizer.param_groups[0].get("lr")
        if type(lr) is float:
            F.lr = lr


def reset():
    """Forget what was noted, also in a forked child."""
    if L.thin:
        thin.bypass(False)
    L.most -= len(sizes)
    del marks[:], segments[:], sizes[:], losses[:], cpu_marks[:]


def _book_many(times, noted, cpu_ns, may_end):
    """Book whole steps at once: what ``_replay`` and ``steps.close`` would book, summed up.

    ``cpu_ns`` is the thread's CPU time at their end where a record ends there, else -1.
    """
    n, ends = len(times) // 8, times[8::8]
    batches, values = noted.take(n, n)
    noted.book_cpu(4 * n if L.probing else 0)
    spent = [sum(times[i + 1 :: 8]) - sum(times[i : 8 * n : 8]) for i in range(8)]
    gaps = zip(times[2::8], times[3::8], times[4::8])
    loss_ns = sum(end - out for began, out, end in gaps if (end - out) * LOSS_SHARE <= out - began)
    other_ns = spent[1] + spent[3] + spent[5] + spent[7] - loss_ns
    thin.learn(n, times[-1] - times[0], other_ns, spent[2] + loss_ns, spent[4], spent[6])
    totals[DATA] += spent[0]
    totals[FORWARD] += spent[2] + loss_ns
    totals[BACKWARD] += spent[4]
    totals[OPTIMIZER] += spent[6]
    totals[OTHER] += other_ns
    count_steps(n, batches)
    S.last_ns = ends[-1]
    C.last_fetch_step = events.known_optimizers[L.optimizer_id] = S.step + n - 1
    steps.close_many(n, max(map(sub, ends, [F.end_ns, *ends])), values, cpu_ns, 1, may_end)


def count_steps(n, batches):
    """Book what ``n`` plain steps are counted by."""
    totals[SAMPLES] += sum(samples for samples, _ in batches)
    totals[TOKENS] += sum(tokens for _, tokens in batches)
    totals[MICRO_BATCHES] += n
    totals[OPTIMIZER_STEPS] += n


def _replay(times, batches, values):
    """Book one step, or the part of it that has been."""
    n = len(times)
    S.phase = OTHER
    if n == 1:
        return _open(DATA)
    _book(DATA, times[1])
    C.last_fetch_step = S.step
    samples, tokens = batches[0]
    if n == 2:
        C.samples, C.tokens, C.data_ns, C.unsure = samples, tokens, times[1] - times[0], True
        return None
    totals[SAMPLES] += samples
    totals[TOKENS] += tokens
    _book(OTHER, times[2])
    if n == 3:
        C.in_forward = True
        return _open(FORWARD)
    _book(FORWARD, times[3])
    C.forwards = 1
    if n == 4:
        C.forward_ns, C.gap_phase, C.gap_began = times[3] - times[2], OTHER, totals[OTHER]
        return None
    is_loss = (times[4] - times[3]) * LOSS_SHARE <= times[3] - times[2]
    _book(FORWARD if is_loss else OTHER, times[4])
    C.backwards = sentinel.unseen = 1
    totals[MICRO_BATCHES] += 1
    if n == 5:
        C.in_backward = True
        return _open(BACKWARD)
    _book(BACKWARD, times[5])
    if values and values[0] is not None:
        C.loss_sum, C.loss_count = values[0], 1
    if n == 6:
        return None
    _book(OTHER, times[6])
    if n == 7:
        C.in_optimizer, C.optimizer_depth = 1, 0
        return _open(OPTIMIZER)
    _book(OPTIMIZER, times[7])
    totals[OPTIMIZER_STEPS] += 1
    sentinel.unseen = 0
    C.stepped.add(L.optimizer_id)
    events.known_optimizers[L.optimizer_id] = S.step
    C.pending = True
    return None


def _book(phase, now_ns):
    totals[phase] += now_ns - S.last_ns
    S.last_ns = now_ns


def _open(phase):
    L.booked = totals[phase]
    stack.append(OTHER)
    S.phase = phase
