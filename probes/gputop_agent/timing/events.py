"""What the beginning of an outermost fetch, forward or backward means for the step."""

import sys
from collections import deque

from gputop_agent import wire
from gputop_agent.runtime import frames
from gputop_agent.runtime.sentinel import sentinel
from gputop_agent.runtime.session import session
from gputop_agent.timing import clock, steps
from gputop_agent.timing.step_state import open_step

# so long an optimizer that did not step is waited for: a WGAN's generator steps in each fifth or
# tenth
WAIT_STEPS = 12

MAX_FRAMES, MAX_PLACES = 12, 64  # that name a place; of a step

known_optimizers = {}  # id -> step in which it last stepped, or was found
begun_optimizers = set()  # ids of those that have stepped
optimizer_values = {}  # id -> values in its parameters when it was found
found_optimizers = {}  # id -> step in which it was found
gone_optimizers = deque()  # weak references to those that were freed since the last look


def fetch_begins():
    """The loop asks for a batch: the step is over if its optimizer has stepped."""
    if open_step.unsure:
        open_step.belongs_to_evaluation()
    if session.manual:
        return
    if open_step.pending:
        steps.close(clock.book())
    elif open_step.backwards and sentinel.watching():
        if sentinel.was_updated():
            _update_inferred()
        else:  # if the gradient is gone at the next forward, the step ended here
            steps.cut_here()


def compute_begins():
    """A forward with gradients or a backward begins: the step is over if all have stepped."""
    if session.manual:
        return
    here = place() if len(known_optimizers) != 1 else ()  # none is known at the first backward
    if open_step.pending:
        if all_stepped():
            steps.close(clock.book())
        elif here in open_step.places:
            steps.close_at_cut() if open_step.cut is not None else steps.close(clock.book())
        elif open_step.cut is None:
            steps.cut_here()
    elif open_step.backwards and sentinel.watching() and sentinel.was_updated():
        _update_inferred()
    if here and len(open_step.places) < MAX_PLACES:
        open_step.places.add(here)


def optimizer_begins(key):
    """An optimizer is about to step. If it has stepped before in this step, the step ended where
    the cut says.

    Without a cut nothing was computed since: the closure of the step to come does that, so the step
    ends here. Where the batch is fetched and another optimizer is still to step (a critic's two
    updates before the generator's one), the step goes on.
    """
    if open_step.pending and key in open_step.stepped:
        if open_step.last_fetch_step == session.step and not all_stepped():
            open_step.cut = None
        elif open_step.cut is not None:
            steps.close_at_cut()
        elif not session.manual:
            steps.close(clock.book())


def process_ends():
    """Close the last step if it is complete."""
    if open_step.unsure:
        open_step.belongs_to_evaluation()
    if open_step.pending:
        steps.close_late()
    elif open_step.backwards and not session.manual and sentinel.watching():
        if sentinel.was_freed():
            complete = open_step.backwards >= sentinel.backwards
        else:
            complete = sentinel.was_updated()
        if complete:
            _believe()
            _close_inferred()


def forget_optimizers():
    """Forget those that were freed: others may get their ids."""
    while gone_optimizers:
        reference = gone_optimizers.popleft()
        if session.optimizers.get(reference.key) is reference:
            del session.optimizers[reference.key]
            known_optimizers.pop(reference.key, None)
            found_optimizers.pop(reference.key, None)
            optimizer_values.pop(reference.key, None)
            begun_optimizers.discard(reference.key)
            open_step.stepped.discard(reference.key)


def has_stepped(optimizer):
    """Whether an optimizer has stepped after the step in which it was found."""
    key = id(optimizer)
    return known_optimizers.get(key, 0) > found_optimizers.get(key, -1)


def all_stepped():
    """Whether every optimizer that is in use has stepped since the last boundary."""
    forget_optimizers()
    if len(known_optimizers) < 2 or open_step.flags & wire.F_OPT_IN_BACKWARD:
        return True
    stepped = open_step.stepped
    return not any(key not in stepped and steps_lately(key) for key in known_optimizers)


def steps_lately(key):
    """Whether an optimizer with this id is one of those that the steps of late have had."""
    return known_optimizers.get(key, -WAIT_STEPS) > session.step - WAIT_STEPS


def place():
    """Where the loop is: the lines that led here, but torch's. Where it has been before in a step,
    it has come around.

    Each pass is a step, whichever of several optimizers it uses. Empty where there is no such line.
    """
    lines, frame = [], sys._getframe(2)
    while frame is not None and len(lines) < MAX_FRAMES:
        if frames.origin(frame.f_code.co_filename) in (frames.USER, frames.LIBRARY):
            lines.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return tuple(lines)


def _update_inferred():
    """Weights changed and no hook told. The first time, SAM may have moved them before its
    optimizer's first step.

    So the first step ends only when there is a second such change, or with the process.
    """
    if sentinel.believed or sentinel.events or not known_optimizers:
        _close_inferred()
    elif sentinel.guess is None:
        steps.cut_here()
        sentinel.guess, open_step.cut = open_step.cut, None
    elif open_step.backwards > sentinel.guess.backwards:
        _believe()
        _close_inferred()


def _believe():
    """End the first step where the first change was seen; what came after is the next step's."""
    sentinel.believed = True
    guess, sentinel.guess = sentinel.guess, None
    if guess is None or open_step.backwards <= guess.backwards:
        return
    later, open_step.cut = open_step.cut, guess
    open_step.flags |= wire.F_NO_OPT_EVENT
    steps.close_at_cut()
    if later is not None:
        open_step.cut = later.since(guess)


def _close_inferred():
    open_step.flags |= wire.F_NO_OPT_EVENT
    sentinel.backwards = open_step.backwards
    if open_step.cut is not None:
        steps.close_at_cut()
    else:
        steps.close(clock.book())


@session.after_fork
def reset():
    """In a forked child."""
    known_optimizers.clear()
    found_optimizers.clear()
    optimizer_values.clear()
    begun_optimizers.clear()
    gone_optimizers.clear()
    sentinel.__init__()
