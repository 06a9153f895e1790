"""Thin steps: of many short plain steps one in a record is taken apart, the others leave two marks and are counted.

Eight hooks cost a short step more than they tell. While a record of 250 ms stands for many plain steps, the forward's
slot and the optimizer's hooks are bypassed in all but one of them, at a random place of the record, so that nothing
periodic falls into step with it. Of a thin step the fetch's two times are noted, and its backward is counted without
any code of Python's. Its time from the fetch's end to the next fetch is divided as in the last steps that were taken
apart. Exact remain wall time, data time, samples, the count of steps and of micro-batches; the updates are counted by
the version of a trained parameter, which each of them raises by the same number.

What does not fit ends the thin steps: a backward or an update too many or too few, which shows when a stretch of them
ends, and at once whatever leaves the lane. A step that took twice as long as usual has its excess booked as "other",
unless the thread was merely off the core, and if that amounts to something, steps are taken apart for as long as it may
take to come again. After what comes out of turn thin steps begin again only when four times as many plain ones have
passed as there were until then.
"""

import sys
from collections import deque
from operator import sub
from time import monotonic_ns, thread_time_ns
from typing import Any

from . import events, frames, lane, modes, steps
from .clock import MICRO_BATCHES, OPTIMIZER_STEPS, SAMPLES, TOKENS, totals
from .cycle import C
from .sentinel import sentinel
from .state import BACKWARD, DATA, FORWARD, OPTIMIZER, OTHER, L, S

try:
    import resource
except ImportError:  # not Unix
    resource: Any = None

STRIDE = 2  # marks of a thin step
SHORT_NS = steps.FOLD_NS // (steps.MAX_PROBED_STEPS + 1)  # of longer steps the CPU time is told too
LOSS_EVERY = 64  # of a stretch of thin steps the first leaves its loss, and each 64th after it
BULK_NS = 250_000_000  # so long at most thin steps wait to be booked
CALM_STEPS = 500  # plain steps before the first thin one
CALM_TIMES = 4
LOOK_STEPS, MAX_LOOKED, LOOKED_SHARE = 100, 500, 32
UNKNOWN_SHARE, UNKNOWN_NS = 50, 500_000_000  # so much excess of at least so much time is left alone
EXCESS_TIMES, EXCESS_NS = 2, 100_000  # a step sticks out that took so many times the usual and so much more
KNOWN_STRETCHES, KNOWN_SIZES = 9, 20
_WHO = getattr(resource, "RUSAGE_THREAD", None)  # Linux only
_PARTS = (OTHER, FORWARD, BACKWARD, OPTIMIZER)  # what the time after a fetch is divided into


class Thin:
    """What is known of the steps that were taken apart."""

    def __init__(self):
        self.known = deque(maxlen=KNOWN_STRETCHES)  # nanoseconds a step of ``_PARTS``, newest last
        self.lengths = deque(maxlen=KNOWN_STRETCHES)  # ... of the whole step
        self.cpu = deque(maxlen=KNOWN_STRETCHES)  # the thread's CPU time a step, by record
        self.began: Any = (0, 0, 0, 0)  # ``reading`` when the lane began
        self.last_event = 0  # the step at which something came out of turn last
        self.last_excess = 0  # the step at which a thin one stuck out last
        self.unknown_ns = self.unknown_since = 0  # excess since when nobody has looked
        self.looked = 0  # steps that were taken apart because of it, and nothing came
        self.random = 1
        self.sizes = deque(maxlen=KNOWN_SIZES)  # ``(samples, tokens)`` of the last batches that were counted
        self.size = (0, 0)  # the usual one of them
        self.short: Any = None  # the size of an epoch's last batch, while that is booked

    def usual(self):
        """Nanoseconds of ``_PARTS`` in a usual step: medians, so that one that was interrupted does not count."""
        return [_median(part) for part in zip(*self.known)]


T = Thin()
hooked: Any = []  # modules whose hooks can be bypassed
counter: Any = None  # what counts the backwards of thin steps: a ``functools.lru_cache`` that keeps nothing


def begin(now_ns):
    """The lane begins with the fetch that begins now."""
    T.began = reading(now_ns)
    L.version, L.backwards = _version(), backwards()
    L.sampling = (
        L.delta > 0
        and S.step >= L.thin_from
        and not S.compile_seen
        and not L.nested
        and bool(T.lengths)
        and _median(T.lengths) < SHORT_NS
    )
    if L.sampling:
        L.probing = False
        T.size = max(T.sizes, key=T.sizes.count)
        L.vary = len(T.sizes) - T.sizes.count(T.size) > 1  # an epoch's last batch may be smaller
        if S.world_size == 1:
            L.settle_ns = now_ns + BULK_NS
        L.record_ns = L.settle_ns  # records are longer: each costs as much as many thin steps
        T.unknown_since = T.unknown_since or now_ns
        T.random = (T.random * 1103515245 + 12345) & 0x7FFFFFFF
        L.until_ns = now_ns + (L.record_ns - now_ns) * T.random // 0x90000000
        bypass(True)


def turn():
    """The step begins that is taken apart, or it has ended and thin ones follow."""
    if L.thin:
        L.until_ns = 0  # for one step
    bypass(not L.thin)


def bypass(on):
    """Take the hooks out of the way of thin steps, or put them back."""
    L.thin = on
    L.thin_id = L.iterator_id if on and not L.vary else 0
    for hook in hooked:
        hook.bypass(on)


def in_order(noted):
    """Whether each of the steps of this stretch, of which so many marks were noted, has made one update."""
    version, begun = _version(), backwards()
    moved, n = version - L.version, noted // (STRIDE if L.thin else 8)
    if L.thin:
        if moved != L.delta * n or begun != L.backwards + n:
            return False
    else:
        delta, left = divmod(moved, n)
        if left or delta != L.delta:
            L.delta = delta if delta > 0 and not left else 0
            L.sampling = False
    L.version, L.backwards = version, begun
    return True


def end():
    """Take the steps apart again. Returns how many updates and backwards the present stretch has seen."""
    bypass(False)
    return (_version() - L.version) // L.delta, backwards() - L.backwards


def put_off():
    """Something happened that thin steps would not have told: wait for a longer stretch of plain ones."""
    L.thin_from = S.step + max(CALM_STEPS, CALM_TIMES * (S.step - T.last_event))
    T.last_event = S.step
    T.looked = 0


def look(step, excess_ns):
    """Thin steps stuck out by so much: take steps apart from ``step`` on for as long as it may take to come again.

    A fiftieth of the time is left alone: it may lie in "other" whatever it is, and no phase is far off.

    Looks that find nothing have a limit, since a virtual machine that loses its core looks like a thread that computes.
    """
    wanted = max(LOOK_STEPS, (step - T.last_excess) * 5 // 4) if T.last_excess else LOOK_STEPS
    T.last_excess = step
    T.unknown_ns += excess_ns
    if T.unknown_ns * UNKNOWN_SHARE < max(UNKNOWN_NS, S.last_ns - T.unknown_since):
        return
    T.unknown_ns, T.unknown_since = 0, S.last_ns
    if step + wanted > L.thin_from and T.looked + wanted <= MAX_LOOKED + step // LOOKED_SHARE:
        T.looked += step + wanted - max(step, L.thin_from)
        L.thin_from = step + wanted


def reading(now_ns):
    """``(now, the thread's CPU time, how often it gave the core away, steps until now)``."""
    gave_away = resource.getrusage(_WHO).ru_nvcsw if _WHO is not None else 0
    return now_ns, thread_time_ns(), gave_away, S.step + lane.whole_steps()


def learn(n, wall_ns, *parts_ns):
    """``n`` steps were taken apart; ``parts_ns`` are the sums of ``_PARTS``."""
    T.lengths.append(wall_ns // n)
    T.known.append([part // n for part in parts_ns])


def book(times, noted, span, paused_ns, is_last, updates, more):
    """Book a stretch of whole thin steps.

    ``span`` are the readings at the ends of the record that it lies in, ``paused_ns`` is the garbage collector's time;
    ``is_last``: no step follows it; ``more``: so many backwards besides one a step. Where there were fewer ``updates``
    than steps, those that had none are micro-batches of the last one.
    """
    n = len(times) // STRIDE
    totals[MICRO_BATCHES] += more
    if not n:
        return
    batches, losses = noted.take(n if L.vary else 0, (n + LOSS_EVERY - 1) // LOSS_EVERY)
    batches = batches or [T.size] * n
    if is_last and T.short and not L.vary:
        batches[-1] = T.short
    fetched, ends = times[1::STRIDE], times[STRIDE::STRIDE]
    totals[DATA] += sum(fetched) - sum(times[: STRIDE * n : STRIDE])
    _divide(list(map(sub, ends, fetched)), span, paused_ns)
    lane.count_steps(n, batches)
    S.last_ns = ends[-1]
    updates = max(0, min(n, updates))
    totals[OPTIMIZER_STEPS] -= n - updates
    if updates:
        C.last_fetch_step = events.known_optimizers[L.optimizer_id] = S.step + updates - 1
        longest = max(map(sub, ends, [steps.F.end_ns, *ends]))
        steps.close_many(updates, longest, losses, -1, LOSS_EVERY, is_last)
    else:
        C.forwards = C.backwards = sentinel.unseen = n


def _divide(rests, span, paused_ns):
    """Book the times after the fetches of thin steps."""
    usual = T.usual()
    typical, total = sum(usual) or 1, sum(rests)
    excess, most = 0, EXCESS_TIMES * typical + EXCESS_NS
    if max(rests) > most:
        excess = sum(rest - typical for rest in rests if rest > most)
    if excess:
        more_ns = _more_cpu_ns(*span) - paused_ns
        if more_ns > typical + EXCESS_NS and 2 * more_ns > excess:
            look(span[1][3], excess)
        elif span[0][2] == span[1][2]:  # others took the core, whatever the step was at
            excess = 0
    parts = [(total - excess) * part // typical for part in usual]
    parts[0] += total - sum(parts)
    for phase, spent in zip(_PARTS, parts):
        totals[phase] += spent


def epoch_ends():
    """The fetch that was going on found no more batches: the last one may have been smaller, where the loader says."""
    loader, (samples, tokens) = C.loader or {}, T.size
    length, most = loader.get("dataset_length"), loader.get("batch_size")
    T.short = None
    if type(length) is int and type(most) is int and most == samples and length % most:
        if loader.get("length") == -(-length // most):  # none is dropped, and the sampler leaves none out
            T.short = length % most, tokens * (length % most) // most


def learn_cpu(began, ended):
    """A record has ended; both are readings."""
    if ended[3] > began[3]:
        T.cpu.append((ended[1] - began[1]) // (ended[3] - began[3]))


def _more_cpu_ns(began, ended):
    """CPU time of a record beyond what its steps usually take."""
    return ended[1] - began[1] - (ended[3] - began[3]) * _median(T.cpu) if T.cpu else 0


def replay(times, noted, updated, begun):
    """Book the part of a thin step that has been, as well as it is known."""
    S.phase = OTHER
    if len(times) == 1:
        return lane._open(DATA)
    lane._book(DATA, times[1])
    C.last_fetch_step = S.step
    C.forwards = 1
    samples, tokens = noted.sizes[0] if L.vary else T.size
    if not begun:
        C.samples, C.tokens, C.data_ns, C.unsure = samples, tokens, times[1] - times[0], True
        return None
    totals[SAMPLES] += samples
    totals[TOKENS] += tokens
    totals[MICRO_BATCHES] += 1
    C.backwards = sentinel.unseen = 1
    if noted.losses and noted.losses[0] is not None:
        C.loss_sum, C.loss_count = noted.losses[0], 1
    _book_usual(updated)
    if updated:
        totals[OPTIMIZER_STEPS] += 1
        sentinel.unseen = 0
        C.stepped.add(L.optimizer_id)
        events.known_optimizers[L.optimizer_id] = S.step
        C.pending = True
    elif _is_stepping():
        C.in_optimizer, C.optimizer_depth = 1, 0
        lane._open(OPTIMIZER)
    return None


def _book_usual(updated):
    """What has certainly been done since the fetch takes its usual time; the rest stays open, as "other"."""
    usual = T.usual()
    certain = [(phase, ns) for phase, ns in zip(_PARTS, usual) if phase != OTHER and (updated or phase != OPTIMIZER)]
    elapsed, needed = monotonic_ns() - S.last_ns, sum(ns for _, ns in certain) or 1
    for phase, ns in certain:
        lane._book(phase, S.last_ns + (ns if needed <= elapsed else ns * elapsed // needed))


def phase(noted, frame):
    """What the training thread does in a thin step that has left so many marks, by where its ``frame`` stands."""
    if noted % STRIDE == 1:
        return DATA
    for one in frames.stack(frame):
        file, name = one.f_code.co_filename, one.f_code.co_name
        if name == "_call_impl" and file.endswith("module.py"):
            return FORWARD
        if name == "_engine_run_backward":
            return BACKWARD
        if frames.is_optimizer_step(one):
            return OPTIMIZER
    return OTHER


def _is_stepping():
    """Whether the calling thread is inside an optimizer's step."""
    return any(map(frames.is_optimizer_step, frames.stack(sys._getframe(1))))


def _median(values):
    return sorted(values)[len(values) // 2]


def backwards():
    """How many backwards thin steps have seen in all."""
    return counter.cache_info().misses if counter is not None else 0


def in_loss():
    """From the agent's thread: whether the present step's fetch has ended and its backward has not begun."""
    return len(lane.marks) % STRIDE == 0 and backwards() - L.backwards < len(lane.marks) // STRIDE


@modes.unseen
def _version():
    parameter = sentinel.reference() if sentinel.reference is not None else None
    return parameter._version if parameter is not None else 0


def reset():
    """In a forked child."""
    T.__init__()
    L.thin_from, L.delta, L.sampling, L.nested = CALM_STEPS, 0, False, False
