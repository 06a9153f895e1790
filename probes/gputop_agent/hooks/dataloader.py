"""Fetches: ``next()`` on a DataLoader's iterator, and the making of that iterator (which starts the workers)."""

import sys
import weakref
from _thread import get_ident
from time import monotonic_ns
from typing import Any

from gputop_agent import (
    activation,
    batch,
    clock,
    describe_loader,
    device,
    events,
    fetches,
    guard,
    lane,
    loader_places,
    steps,
    thin,
)
from gputop_agent.clock import stack, totals
from gputop_agent.cycle import C
from gputop_agent.lane import L, marks, sizes
from gputop_agent.sentinel import sentinel
from gputop_agent.state import DATA, EVAL, H2D, S
from gputop_agent.thin import LOSS_EVERY, STRIDE

from . import autograd, forward, optimizer

_LOSS_MARKS = STRIDE * LOSS_EVERY
_NOT_FIRST = _LOSS_MARKS - 1  # mask: no bit of it is set where a thin step begins whose loss is read
_descriptions = weakref.WeakKeyDictionary()  # iterator -> description of its DataLoader


def install(torch):
    """Wrap both at class level: the types that the user sees stay the same."""
    module = sys.modules["torch.utils.data.dataloader"]
    iterator, loader = module._BaseDataLoaderIter, module.DataLoader
    may_start = activation.before_training
    guard.patch(iterator, "__next__", _timed_next(iterator.__next__))
    guard.patch(loader, "__init__", loader_places.noting(loader.__init__))
    guard.patch(loader, "_get_iterator", guard.around(loader._get_iterator, before_fetch, after_iterator, may_start))


def _timed_next(original):
    """What ``guard.around`` makes of ``before_fetch`` and ``after_fetch``, with the common case written out.

    That is a fetch by the training loop itself, with nothing around it and nothing undecided. Torch's own code between
    our hooks leaves the caches cold, and then every call of a Python function costs about a microsecond. All
    but one of 64 thin steps leave the two times and nothing else.
    """
    note, now_ns = L.note, L.now

    def wrapper(self):
        if id(self) == L.thin_id and len(marks) & _NOT_FIRST:
            note(now_ns())
            result = None
            try:
                result = original(self)
                return result
            finally:
                if result is not None:
                    note(now_ns())
                else:
                    guard.safely(_epoch_ended, self)
        token, booked, noted, now = None, -1, False, 0
        try:
            turn = len(L.marks)
            place = turn % STRIDE if L.thin else turn & 7
            if turn and id(self) == L.iterator_id and not place:
                now = L.now()
                noted = now < L.until_ns or lane.cut(now)
            if noted:
                L.note(now)
            elif get_ident() == S.thread_ident and (turn or not forward._compiling["_is_compiling_flag"]):
                if not turn:
                    pass
                elif place or id(self) != L.iterator_id:
                    lane.leave()
                else:
                    lane.settle(now)
                if stack or C.unsure or S.manual or not forward.is_grad_enabled():
                    token = before_fetch((self,), None)
                else:
                    now = monotonic_ns()
                    totals[S.phase] += now - S.last_ns
                    S.last_ns = now
                    if C.pending:
                        steps.close(now)
                        now = monotonic_ns()
                        totals[S.phase] += now - S.last_ns
                        S.last_ns = now
                    elif C.backwards and sentinel.watching():
                        events.fetch_begins()
                    if not C.backwards and C.iterator_id == id(self) and lane.may_begin():
                        noted = True
                        lane.begin(now, id(self))
                    else:
                        stack.append(S.phase)
                        booked = totals[DATA]
                        S.phase = DATA
            elif not S.thread_ident:
                token = before_fetch((self,), None)
        except Exception:
            guard.failed("__next__")
        result = None
        try:
            result = original(self)
            return result
        finally:
            if noted:
                try:
                    turn, shape = len(L.marks), None
                    if L.thin and turn % _LOSS_MARKS == 1:
                        autograd.read_loss()
                    turn = turn % STRIDE if L.thin else turn & 7
                    if L.thin and not L.vary:
                        shape = turn == 1 and result is not None
                    elif type(result) is L.batch_type and len(sizes) < L.most:
                        try:
                            value: Any = result
                            for get, key in L.path:
                                value = get(value, key)
                            shape = value.shape
                        except Exception:  # another structure under the same type
                            pass
                    if shape is True:
                        L.note(L.now())
                    elif shape and turn == 1:
                        sizes.append(shape)
                        L.note(L.now())
                    elif turn == 1 and lane.note_batch(result):
                        L.note(L.now())
                    elif result is None:
                        _epoch_ended(self)
                    else:
                        lane.leave()
                        after_fetch((0, L.booked, True), (self,), result)
                except Exception:
                    guard.failed("__next__")
            elif booked >= 0:
                try:
                    if result is None or len(stack) != 1:
                        after_fetch((0, booked, True), (self,), result)
                    else:
                        samples, tokens = batch.count(result)
                        C.samples += samples
                        C.tokens += tokens
                        now = monotonic_ns()
                        totals[S.phase] += now - S.last_ns
                        S.last_ns = now
                        S.phase = stack.pop()
                        C.data_ns += totals[DATA] - booked
                        C.unsure = True
                        C.last_fetch_step = S.step
                        if S.cuda:
                            device.mark("data_end")
                            S.phase = H2D
                        if C.iterator_id != id(self) or S.want_batch:
                            _look_at(self, result, totals[DATA] - booked)
                except Exception:
                    guard.failed("__next__")
            elif token is not None:
                try:
                    after_fetch(token, (self,), result)
                except Exception:
                    guard.failed("__next__")

    return guard.dress(wrapper, original)


def _epoch_ended(iterator):
    """A fetch that was noted found no more batches, which is nothing out of turn."""
    thin.epoch_ends()
    lane.settle()
    thin.T.short = None
    after_fetch((0, L.booked, True), (iterator,), None)


def before_fetch(args, kwargs):
    """Begin the phase. Before training begins only the time is remembered."""
    if not S.thread_ident:
        return -1, monotonic_ns(), S.torch.is_grad_enabled()
    graded = forward.is_grad_enabled()
    if C.in_optimizer:
        optimizer.heal()
    if graded and not C.in_forward and not C.in_backward and not C.in_optimizer:
        events.fetch_begins()
    depth = len(clock.stack)
    clock.enter(DATA)
    return depth, clock.totals[DATA], graded


def after_fetch(token, args, result):
    """End the phase; whether the batch trains or evaluates shows later."""
    depth, booked, graded = token
    samples, tokens = batch.count(result) if graded and result is not None else (0, 0)
    if depth < 0:
        if graded:
            activation.fetch_ended(booked, samples, tokens, _descriptions.get(args[0]))
        return
    spent_ns = _book_fetch(depth, booked, graded)
    C.samples += samples
    C.tokens += tokens
    _look_at(args[0], result if graded else None, spent_ns)
    if result is None:
        fetches.iterator_exhausted(args[0], spent_ns)
    if S.cuda:
        device.mark("data_end")
        if not stack:
            clock.switch(H2D)


def after_iterator(token, args, result):
    """End the phase; describe the loader now: ``for x in DataLoader(...)`` keeps the iterator only."""
    depth, booked, graded = token
    if result is not None and result not in _descriptions:
        _descriptions[result] = describe_loader.describe_loader(args[0], loader_places.of(args[0]))
    if depth >= 0:
        C.iterator_id = 0  # a new iterator may lie where the last one lay
        fetches.iterator_made(result, _book_fetch(depth, booked, graded))


def _book_fetch(depth, booked, graded):
    """End the phase and say whose time it was. Returns how long it took."""
    clock.unwind(depth)
    spent_ns = clock.totals[DATA] - booked
    if graded:
        C.data_ns += spent_ns
        C.unsure = True
    else:
        clock.move(spent_ns, DATA, EVAL)
        C.evaluated = C.unsure = True
    C.last_fetch_step = S.step
    return spent_ns


def _look_at(iterator, batch_or_none, spent_ns):
    """Once an iterator: describe what the training fetches from now."""
    if C.iterator_id != id(iterator):
        C.iterator_id = id(iterator)
        C.loader = _descriptions.get(iterator)
        fetches.watch(iterator, C.loader if batch_or_none is not None else None)
        fetches.first_fetch(iterator, spent_ns)
    if S.want_batch and batch_or_none is not None:
        S.last_batch, S.want_batch = batch_or_none, False
