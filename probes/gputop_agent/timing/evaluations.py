"""In which mode networks that are trained are evaluated."""

import weakref

from gputop_agent.runtime import frames
from gputop_agent.runtime.living import alive
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
        self._maybe_site = None
        self.copy_steps = 0
        """Steps with a copy in training mode, while the trained one was in eval mode."""
        self.copy = None  # a weak reference to it
        self.copy_site = None
        self._last_copy_step = -1

    def forward_begins(self, module):
        """A trained network is called without gradients, perhaps by an evaluation."""
        if not _is_training(module):
            self.is_in_eval_mode = True
        elif self._maybe is None:
            self._maybe = weakref.ref(module)
            is_another_step = self.steps > 0 and session.step != self._last_step
            # after a first evaluation: a GAN calls its generator so in each step, and has none
            if self.site is None and is_another_step:
                self._maybe_site = frames.own_site()

    def other_begins(self, other):
        """A network in training mode that is not trained is called without gradients: the wrong one
        is in eval mode where one of its class is.
        """
        if session.step == self._last_copy_step:
            return
        roots = [root for root in alive(session.roots) if type(root) is type(other)]
        if roots and not any(root.training for root in roots):
            self.copy_steps, self._last_copy_step = self.copy_steps + 1, session.step
            self.copy, self.copy_site = weakref.ref(other), self.copy_site or frames.own_site()

    def was_training(self):
        """It was a part of the step, such as a target or a generator's samples."""
        self._maybe = None

    def was_evaluation(self):
        """It was an evaluation."""
        if self._maybe is not None and session.step != self._last_step:
            self.steps, self._last_step = self.steps + 1, session.step
            self.module = self._maybe
            self.site = self.site or self._maybe_site
        self._maybe = None


def _is_training(module):
    """Whether a network is in training mode, and not a wrapper of one in eval mode."""
    if not module.training:
        return False
    children = module.__dict__["_modules"].values()
    return not children or any(child.training for child in children if child is not None)


modes = Modes()


@session.after_fork
def reset():
    """In a forked child."""
    modes.__init__()
