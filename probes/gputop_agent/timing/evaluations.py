"""In which mode networks that are trained are evaluated."""

import weakref

from gputop_agent.runtime import frames
from gputop_agent.runtime.session import session


class Modes:
    """Evaluations so far: those in training mode, and whether there was one in eval mode."""

    def __init__(self):
        self.is_in_eval_mode = False
        """Some evaluation of a trained network was."""
        self.steps = 0
        """Steps with an evaluation in training mode."""
        self.module = None  # a weak reference to what was evaluated there
        self.site = None
        self._last_step = -1
        self._maybe = None  # what may turn out to have been such an evaluation

    def forward_begins(self, module):
        """A trained network is called without gradients, perhaps by an evaluation."""
        if not module.training:
            self.is_in_eval_mode = True
        elif self._maybe is None:
            self._maybe = weakref.ref(module)
            is_another_step = self.steps > 0 and session.step != self._last_step
            # after a first evaluation: a GAN calls its generator so in each step, and has none
            if self.site is None and is_another_step:
                self.site = frames.own_site()

    def was_training(self):
        """It was a part of the step, such as a target or a generator's samples."""
        self._maybe = None

    def was_evaluation(self):
        """It was an evaluation."""
        if self._maybe is not None and session.step != self._last_step:
            self.steps, self._last_step = self.steps + 1, session.step
            self.module = self._maybe
        self._maybe = None


modes = Modes()


@session.after_fork
def reset():
    """In a forked child."""
    modes.__init__()
