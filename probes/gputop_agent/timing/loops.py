"""Loops over a DataLoader in which nothing trains, though gradients are on and the network is in
training mode: an evaluation whose script has neither ``no_grad()`` nor ``eval()``.

It shows when an iterator that is older asks for its next batch, and no backward came since the
loop's own was made. Forwards of several loops that one backward sums up are made of new iterators
alone, and stay training.
"""

from typing import NamedTuple

from gputop_agent import wire
from gputop_agent.runtime.session import DATA, EVAL, FORWARD, session
from gputop_agent.timing import clock
from gputop_agent.timing.clock import SAMPLES, TOKENS, totals
from gputop_agent.timing.step_state import EVALUATING, open_step


class Began(NamedTuple):
    """What the step had when the newest iterator was made. Times in nanoseconds."""

    iterator_id: int
    step: int
    gradients: int  # backwards and calls of autograd.grad
    forwards: int
    data_ns: int
    forward_ns: int
    samples: int
    tokens: int


def begins(iterator):
    """An iterator is made."""
    open_step.loop = Began(
        id(iterator),
        session.step,
        open_step.backwards + open_step.grads,
        open_step.forwards,
        totals[DATA],
        totals[FORWARD],
        totals[SAMPLES],
        totals[TOKENS],
    )


def older_asks():
    """An iterator that is older than the newest asks for a batch: the newest loop has ended."""
    loop, open_step.loop = open_step.loop, None
    evaluated = open_step.forwards - loop.forwards
    trained = open_step.backwards + open_step.grads > loop.gradients
    if loop.step != session.step or trained or evaluated < EVALUATING:
        return
    forward_ns = totals[FORWARD] - loop.forward_ns
    clock.move(totals[DATA] - loop.data_ns, DATA, EVAL)
    clock.move(forward_ns, FORWARD, EVAL)
    totals[SAMPLES], totals[TOKENS] = loop.samples, loop.tokens
    open_step.forwards = loop.forwards
    open_step.flags |= wire.F_EVAL
    open_step.graph_evals += round(open_step.weight * evaluated)
    open_step.graph_eval_ns += round(open_step.weight * forward_ns)
