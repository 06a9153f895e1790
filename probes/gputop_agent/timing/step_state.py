"""What is known of the step being timed, and what is not known yet.

Two things only show later. A batch's fetch was for training or for evaluation: the next forward
tells. A forward without gradients in train mode was an evaluation (a fetch follows) or part of
training, such as a GAN's detached generator or a frozen teacher (a backward follows).
"""

from collections import deque
from typing import Any, List, NamedTuple

from gputop_agent import wire
from gputop_agent.runtime import frames, worlds
from gputop_agent.runtime.session import DATA, EVAL, FORWARD, session
from gputop_agent.timing import clock
from gputop_agent.timing.clock import SAMPLES, TOKENS, totals
from gputop_agent.timing.evaluations import modes

NAN = float("nan")
NO_GAP = -1  # no forward has ended since the last backward
EVALUATING = 3
"""Forwards in eval mode, one after the other, that no training needs."""
USUAL_STEPS, MANY_FORWARDS, MANY_TIMES = 10, 64, 16
"""Steps by which it is told how many forwards without gradients a step has; and how many, and how
many times as many, in training mode are an evaluation.
"""

# what a look at gradients and parameters waits for; the last: updates of the other optimizers only
NO_CHECK, FIRST_FORWARD, FIRST_BACKWARD, UPDATE, OTHER_UPDATES = range(5)


class Cut(NamedTuple):
    """A moment at which a step may have ended, and what the step had by then."""

    end_ns: int  # monotonic
    totals: "List[int]"  # a copy of ``clock.totals``
    flags: int
    loss_sum: float
    loss_count: int
    backwards: int
    cpu_ns: int  # of the training thread; -1: not known

    def since(self, earlier):
        """The same moment, for a step that began at the ``earlier`` cut."""
        return self._replace(
            loss_sum=self.loss_sum - earlier.loss_sum,
            loss_count=self.loss_count - earlier.loss_count,
            backwards=self.backwards - earlier.backwards,
        )


class StepState:
    """The current step. ``begin_step`` forgets what belongs to one step only."""

    def __init__(self):
        # -- open calls
        self.in_forward = False
        self.in_backward = False
        self.in_optimizer = 0  # nested: a subclass's step calls its base's
        self.optimizer_depth = 0  # of the phase stack, outside the optimizer
        # -- undecided
        self.unsure = False  # any of the next five is set
        self.data_ns = 0
        self.samples = 0
        self.tokens = 0
        self.soft_eval_ns = 0  # forwards booked as evaluation that may have been training
        self.soft_forwards = 0  # so many
        self.soft_of_steps = deque(maxlen=USUAL_STEPS)  # how many the last steps have trained with
        self.soft_of_step = 0
        self.evaluated = False  # an evaluation forward followed the last fetch
        # -- the loss computed between a forward's end and its backward
        self.gap_began = 0  # the surrounding phase's total at the forward's end
        # -- what runs between two forwards that evaluate
        self.eval_began = 0  # the total of "other" at the end of the last of them
        self.eval_forward_ns = 0
        self.eval_progress: Any = None  # of the training, at that moment
        # -- input
        self.last_fetch_step = -100
        self.iterator_id = 0  # of the DataLoader's iterator that was asked last
        self.loader: Any = None  # description of its DataLoader
        self.loop: Any = None  # a ``loops.Began``: over the newest iterator of a DataLoader
        self.stepped = set()  # ids of the optimizers that stepped
        # -- a rare look at gradients and parameters (checkup)
        self.check_stage = NO_CHECK
        self.check_due = 10  # the step after which it is asked whether one is to begin
        # -- evaluation forwards that built a graph, which no backward used
        self.graphed = 0  # since the last fetch; undecided
        self.graphed_by = 0  # id of the network
        self.weight = 1.0  # steps that each measured one stands for
        self.graph_evals = 0
        self.graph_eval_ns = 0
        self.graphed_at: Any = None  # line of the last of them; undecided until it is the place
        self.graph_eval_site: Any = None
        self.begin_step()

    def begin_step(self):
        """Forget the step that was closed."""
        self.soft_of_steps.append(self.soft_of_step)
        self.soft_of_step = 0
        self.pending = False  # an optimizer stepped: the next event closes the step
        self.flags = 0
        self.backwards = 0
        self.grads = 0  # calls of autograd.grad
        self.forwards = 0
        self.model_forwards = 0  # those of what has parameters that train
        # of the last forward with gradients, until a backward shows that it trains
        self.inputs: Any = None
        # the place of the backward whose batches are counted, of several optimizers
        self.counted_at: Any = None
        self.places = set()  # of the loop, where forwards and backwards of this step began
        self.loss_sum = 0.0
        self.loss_count = 0
        self.loss_is_known = False  # GradScaler.scale saw the unscaled loss of the coming backward
        self.grad_norm = NAN
        self.stepped.clear()
        self.forward_ns = 0  # forwards with gradients since the last backward
        self.gap_phase = NO_GAP  # the phase around the last of them
        self.cut: Any = None  # a ``Cut``: where the step ends if it turns out that it has ended

    def may_evaluate(self, graded):
        """Whether the last forward was an evaluation; before one with gradients, which decides that
        by itself, also whether it may have been one.
        """
        return self.evaluated or (graded and self.soft_eval_ns > 0)

    def note_graph(self, module, may_evaluate):
        """A forward with gradients is booked as evaluation, for now: where, if it is one."""
        if may_evaluate:
            self.graphed += 1
            self.graphed_by = id(module)
            if self.graph_eval_site is None:
                self.graphed_at = frames.own_site()

    def train(self, module):
        """A training forward begins. Several forwards of the same network in eval mode just before
        it, and no backward, were an evaluation without a loader.
        """
        if self.graphed >= EVALUATING and self.graphed_by == id(module) and module.training:
            self._book_evaluation()
        self.belongs_to_training()

    def belongs_to_training(self):
        """A training forward or a backward began: what was undecided was training."""
        totals[SAMPLES] += self.samples
        totals[TOKENS] += self.tokens
        if self.soft_eval_ns and self._are_far_more_than_usual():
            self._book_evaluation()
            modes.was_evaluation()
        elif self.soft_eval_ns:
            clock.move(self.soft_eval_ns, EVAL, FORWARD)
            self.forwards += 1
            self.model_forwards += 1
            self.soft_of_step += self.soft_forwards
        modes.was_training()
        self.data_ns = self.samples = self.tokens = self.soft_eval_ns = self.graphed = 0
        self.evaluated = self.unsure = False
        self.soft_forwards = 0

    def _are_far_more_than_usual(self):
        """Whether so many forwards without gradients are none of a step: the last ones had few.

        Those of a policy that acts, and comes by its data so now and then, are training.
        """
        usual = max(self.soft_of_steps, default=0)
        is_known = len(self.soft_of_steps) == self.soft_of_steps.maxlen
        many = self.soft_forwards >= max(MANY_FORWARDS, MANY_TIMES * usual)
        return is_known and many and not worlds.are_acted_in()

    def belongs_to_evaluation(self):
        """The next fetch (or the step's end) came without a backward: that was evaluation."""
        if self.soft_eval_ns:
            self._book_evaluation()
            self.evaluated = True
        if self.evaluated:
            modes.was_evaluation()
            clock.move(self.data_ns, DATA, EVAL)
            self.data_ns = self.samples = self.tokens = self.soft_forwards = 0
            self.evaluated = self.unsure = False

    def _book_evaluation(self):
        """The undecided forwards were an evaluation."""
        self.flags |= wire.F_EVAL
        if self.graphed:
            self.graph_evals += round(self.weight * self.graphed)
            self.graph_eval_ns += round(self.weight * self.soft_eval_ns)
            self.graph_eval_site = self.graph_eval_site or self.graphed_at
        self.graphed = self.soft_eval_ns = 0


open_step = StepState()


@session.after_fork
def reset():
    """In a forked child."""
    open_step.__init__()
