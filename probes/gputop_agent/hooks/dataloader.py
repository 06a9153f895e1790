"""Fetches: ``next()`` on a DataLoader's iterator, and the making of that iterator (which starts the workers)."""

import sys
import weakref
from time import monotonic_ns

from gputop_agent import activation, batch, clock, device, events, guard
from gputop_agent.cycle import C
from gputop_agent.state import DATA, EVAL, H2D, S

from . import forward, optimizer

_loaders = weakref.WeakKeyDictionary()  # iterator -> weakref of its DataLoader
_last_iterator = 0  # id


def install(torch):
    """Wrap both at class level: the types that the user sees stay the same."""
    module = sys.modules["torch.utils.data.dataloader"]
    iterator, loader = module._BaseDataLoaderIter, module.DataLoader
    may_start = activation.before_training
    guard.patch(iterator, "__next__", guard.around(iterator.__next__, before_fetch, after_fetch, may_start))
    guard.patch(loader, "_get_iterator", guard.around(loader._get_iterator, before_fetch, after_iterator, may_start))


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
            activation.fetch_ended(booked, samples, tokens)
        return
    _book_fetch(depth, booked, graded)
    C.samples += samples
    C.tokens += tokens
    _note_loader(args[0])
    if S.want_batch and graded:
        S.last_batch, S.want_batch = result, False
    if S.cuda:
        device.mark("data_end")
        if not clock.stack:
            clock.switch(H2D)


def after_iterator(token, args, result):
    """End the phase; remember which loader the iterator belongs to."""
    depth, booked, graded = token
    if result is not None:
        _loaders[result] = weakref.ref(args[0])
    if depth >= 0:
        _book_fetch(depth, booked, graded)


def _book_fetch(depth, booked, graded):
    clock.unwind(depth)
    spent_ns = clock.totals[DATA] - booked
    if graded:
        C.data_ns += spent_ns
        C.unsure = True
    else:
        clock.move(spent_ns, DATA, EVAL)
        C.evaluated = C.unsure = True
    C.last_fetch_step = S.step


def _note_loader(iterator):
    global _last_iterator
    if id(iterator) != _last_iterator:
        _last_iterator = id(iterator)
        C.loader = _loaders.get(iterator)


def reset():
    """In a forked child."""
    global _last_iterator
    _last_iterator = 0
