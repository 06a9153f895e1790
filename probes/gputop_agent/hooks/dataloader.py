"""Fetches: ``next()`` on a DataLoader's iterator, its making (which starts workers), and where a
worker begins.
"""

import os
import sys
from time import monotonic_ns

from gputop_agent import wire
from gputop_agent.description import describe_loader
from gputop_agent.runtime import guard, living
from gputop_agent.runtime.session import DATA, EVAL, H2D, session
from gputop_agent.timing import (
    activation,
    batch,
    clock,
    device,
    events,
    loops,
    sampling,
    startup,
)
from gputop_agent.timing.clock import stack
from gputop_agent.timing.step_state import open_step
from gputop_agent.watchers.loaders import batch_origin, fetches, loader_places, worker_looks

from . import optimizer

BEFORE_TRAINING = -1  # in the place of the clock's depth
_descriptions = living.Living()  # iterator -> description of its DataLoader


def install(torch):
    """Wrap them at class level: the types that the user sees stay the same."""
    module = sys.modules["torch.utils.data.dataloader"]
    iterator, loader = module._BaseDataLoaderIter, module.DataLoader
    may_start = activation.before_training
    fetch = guard.around(iterator.__next__, before_fetch, after_fetch, may_start)
    guard.patch(iterator, "__next__", fetch, steady=False)
    guard.patch(loader, "__init__", loader_places.noting(loader.__init__))
    make = guard.around(
        loader._get_iterator, before_iterator, after_iterator, may_start, always=True
    )
    guard.patch(loader, "_get_iterator", make)
    info = sys.modules["torch.utils.data._utils.worker"].WorkerInfo
    guard.patch(info, "__init__", worker_looks.noting(info.__init__))
    if os.environ.get(wire.ENV_WATCH_NUMERICS) == "1":
        batch_origin.note_samples(iterator)


def before_fetch(args, kwargs):
    """Begin the phase. Returns the depth of the clock's stack, the phase's total (ns) and whether
    gradients are on; before training begins, ``BEFORE_TRAINING`` and the time.
    """
    if not session.thread_ident:
        return BEFORE_TRAINING, monotonic_ns(), session.torch.is_grad_enabled()
    if open_step.loop is not None and open_step.loop.iterator_id != id(args[0]):
        loops.older_asks()
    graded = session.torch.is_grad_enabled()
    if open_step.in_optimizer:
        optimizer.heal()
    if (
        graded
        and not open_step.in_forward
        and not open_step.in_backward
        and not open_step.in_optimizer
    ):
        events.fetch_begins()
    depth = len(clock.stack)
    clock.enter(DATA)
    return depth, clock.totals[DATA], graded


def after_fetch(token, args, result):
    """End the phase; whether the batch trains or evaluates shows later."""
    depth, began, graded = token
    if graded and result is not None:
        samples, tokens = batch.count(result)
    else:
        samples, tokens = (0, 0)
    if depth == BEFORE_TRAINING:
        if graded:
            activation.fetch_ended(began, samples, tokens, _descriptions.get(args[0]))
        return
    spent_ns = _book_fetch(depth, began, graded)
    open_step.samples += samples
    open_step.tokens += tokens
    _look_at(args[0], result if graded else None, spent_ns)
    if result is None:
        fetches.iterator_exhausted(args[0], spent_ns)
    if session.cuda:
        device.timer.mark("data_end")
        if not stack:
            clock.switch(H2D)


def before_iterator(args, kwargs):
    """Begin the phase. An epoch or an evaluation begins, which is to be measured."""
    sampling.measure_now()
    open_step.loop = None
    token = depth, began, graded = before_fetch(args, kwargs)
    if depth == BEFORE_TRAINING and graded:
        startup.batch_asked(began)
    return token


def after_iterator(token, args, result):
    """End the phase; describe the loader: ``for x in DataLoader(...)`` keeps the iterator only."""
    depth, began, graded = token
    if result is not None and result not in _descriptions:
        _descriptions.put(
            result, describe_loader.describe_loader(args[0], loader_places.of(args[0]))
        )
    if depth != BEFORE_TRAINING:
        open_step.iterator_id = 0  # a new iterator may lie where the last one lay
        fetches.iterator_made(result, _book_fetch(depth, began, graded))
        loops.begins(result)


def _book_fetch(depth, total_before_ns, graded):
    """End the phase and say whose time it was. Returns how long it took, in nanoseconds."""
    clock.unwind(depth)
    spent_ns = clock.totals[DATA] - total_before_ns
    if graded:
        open_step.data_ns += spent_ns
        open_step.unsure = True
    else:
        clock.move(spent_ns, DATA, EVAL)
        open_step.evaluated = open_step.unsure = True
    open_step.last_fetch_step = session.step
    return spent_ns


def _look_at(iterator, batch_or_none, spent_ns):
    """Once an iterator: describe what the training fetches from now."""
    if open_step.iterator_id != id(iterator):
        open_step.iterator_id = id(iterator)
        open_step.loader = _descriptions.get(iterator)
        fetches.watch(iterator, open_step.loader if batch_or_none is not None else None)
        fetches.first_fetch(iterator, spent_ns)
        batch_origin.fetched(iterator, batch_or_none)
    elif batch_origin.batches.is_held and batch_or_none is not None:
        batch_origin.fetched(iterator, batch_or_none)
