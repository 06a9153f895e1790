"""The fast lane: a plain step leaves eight times and is booked later, together with its neighbours.

Torch's code between two of our hooks empties the caches, so what a hook costs is what it touches: 50 us for a step
whose code takes 8 us when it is run again at once. While each short step is one fetch, forward, backward and update
with nothing else around them, the hooks note the time and no more. ``settle`` books what was noted as the general path
would have: every 20 ms, and before anything that comes out of turn.
"""

from operator import sub

from . import batch, events, steps
from .clock import MICRO_BATCHES, OPTIMIZER_STEPS, SAMPLES, TOKENS, stack, totals
from .cycle import C
from .sentinel import sentinel
from .state import BACKWARD, DATA, FORWARD, OPTIMIZER, OTHER, L, S
from .steps import FOLD_NS, F

#: monotonic times of fetch, forward, backward and update, their beginnings and ends in turn; eight a step
marks = []
sizes = []  # of the batches of the steps in ``marks``: a shape, or what ``batch.count`` says
losses = []  # of the steps in ``marks``; None: not known
LOSS_SHARE = 4  # a loss computed outside the model takes at most a quarter of its forward
PAUSE_STEPS = 50  # so long the general path runs when a step was not plain
_PHASES = (OTHER, DATA, OTHER, FORWARD, OTHER, BACKWARD, OTHER, OPTIMIZER)  # by how many of a step's times are noted


def may_begin():
    """Whether the steps have been plain and short so far. Asked after a step was closed, with nothing open."""
    if S.step < max(L.from_step, PAUSE_STEPS):
        return False
    L.from_step = S.step + PAUSE_STEPS
    busy = F.probing or S.cuda or S.ddp or S.step_listeners or S.manual or S.want_batch
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
    L.ident, L.iterator_id, L.until_ns, L.most = S.thread_ident, iterator_id, now_ns + FOLD_NS, 0
    S.phase = OTHER
    marks.append(now_ns)


def note_batch(fetched):
    """Count a batch that does more than leave its shape: the first, and each that is looked at closely."""
    if fetched is None:
        return False
    sizes[:] = batch.count_noted(sizes)
    sizes.append(batch.count(fetched))
    L.batch_type, L.path, left = batch.plan_ahead(fetched)
    L.most = len(marks) + 8 * left
    return True


def phase():
    """What the training thread does, for the agent's own thread."""
    noted = len(marks)
    return _PHASES[noted & 7] if noted else S.phase


def leave():
    """Settle because something came out of turn, and take the general path for a while."""
    settle()
    L.from_step = S.step + PAUSE_STEPS


def settle():
    """Book what was noted; phases that are open are open in the general path afterwards."""
    times, values = marks[:], losses[:]
    batches = batch.count_noted(sizes)
    reset()
    if not times:
        return
    S.last_ns = times[0]
    _note_lr()
    L.settling = True
    try:
        ended = (len(times) - 1) // 8  # the fetch that begins ends the step before
        if None in values or any(value - value for value in values[:ended]):
            for i in range(ended):
                _replay(times[8 * i : 8 * i + 8], batches[i : i + 1], values[i : i + 1])
                _book(OTHER, times[8 * i + 8])
                steps.close(times[8 * i + 8])
        elif ended:
            _book_many(times[: 8 * ended + 1], batches[:ended], values[:ended])
        _replay(times[8 * ended :], batches[ended:], values[ended:])
    finally:
        L.settling = False


def _note_lr():
    """The optimizer's hooks do not look at it in the lane; once every 20 ms is enough for a schedule."""
    reference = S.optimizers.get(L.optimizer_id)
    optimizer = reference() if reference is not None else None
    if optimizer is not None:
        lr = optimizer.param_groups[0].get("lr")
        if type(lr) is float:
            F.lr = lr


def reset():
    """Forget what was noted, also in a forked child."""
    del marks[:], sizes[:], losses[:]


def _book_many(times, batches, values):
    """Book whole steps at once: what ``_replay`` and ``steps.close`` would book, summed up."""
    n, ends = len(values), times[8::8]
    spent = [sum(times[i + 1 :: 8]) - sum(times[i : 8 * n : 8]) for i in range(8)]
    gaps = zip(times[2::8], times[3::8], times[4::8])
    loss_ns = sum(end - out for began, out, end in gaps if (end - out) * LOSS_SHARE <= out - began)
    totals[DATA] += spent[0]
    totals[FORWARD] += spent[2] + loss_ns
    totals[BACKWARD] += spent[4]
    totals[OPTIMIZER] += spent[6]
    totals[OTHER] += spent[1] + spent[3] + spent[5] + spent[7] - loss_ns
    totals[SAMPLES] += sum(samples for samples, _ in batches)
    totals[TOKENS] += sum(tokens for _, tokens in batches)
    totals[MICRO_BATCHES] += n
    totals[OPTIMIZER_STEPS] += n
    S.last_ns = ends[-1]
    C.last_fetch_step = events.known_optimizers[L.optimizer_id] = S.step + n - 1
    steps.close_many(n, max(map(sub, ends, [F.end_ns, *ends])), values)


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
    if values[0] is not None:
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
