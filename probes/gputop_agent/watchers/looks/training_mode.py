"""Whether a model that was trained in training mode is now updated in eval mode, or evaluated in
training mode.

Somebody called ``eval()`` for an evaluation, or ``from_pretrained()``, which does, and ``train()``
was forgotten: dropout is off, and batch norm neither uses the statistics of the batch nor keeps
any. A model that was in eval mode from the beginning and has no dropout may be meant so, and one
whose parts alone are in eval mode is.
"""

import itertools
import weakref

from gputop_agent.runtime import source
from gputop_agent.runtime.living import alive
from gputop_agent.runtime.session import session
from gputop_agent.timing.evaluations import modes

MAX_MODULES = 2000
SURE_LOOKS = 2
SURE_STEPS = 2  # with an evaluation in training mode
# what is frozen in the same line is another network, as a teacher
_SETS_EVAL = r"^(?!.*requires_grad).*(\.eval\(\)|\.train\((mode=)?False\))"
_PUTS_IN_EVAL = r"^(?!.*requires_grad)\s*[\w.\[\]]+\.(eval\(\)|train\((mode=)?False\))"
_LOADS_IN_EVAL = r"\.from_pretrained\("
NEVER = -1  # trained in training mode


class TrainingMode:
    """What the looks have seen so far."""

    def __init__(self):
        self.trained = {}  # id of a root -> (weak reference, step of the last look in training)
        self.looks = 0  # in a row that saw a root updated in eval mode

    def look(self, step, parameters):
        """Fields of the event, given the parameters of the optimizer that is about to step."""
        updated = {id(parameter) for parameter in parameters if parameter.grad is not None}
        fields = {}
        for root in alive(session.roots):
            if root.training:
                self.trained[id(root)] = weakref.ref(root), step
                continue
            if not fields:
                fields = self._fields(root, updated)
        self.looks = self.looks + 1 if fields else 0
        if fields:
            fields["eval_mode_looks"] = self.looks
        fields.update(_evaluated_in_training())
        return fields

    def _fields(self, root, updated):
        """Of a root in eval mode; empty where nobody knows it in training mode and it may be meant
        so.
        """
        reference, last = self.trained.get(id(root), (None, NEVER))
        if reference is not None and reference() is not root:
            return {}
        parts = _parts(root, updated)
        site = source.place_run_later(_PUTS_IN_EVAL) if last != NEVER else None
        site = site or source.place_matching(_SETS_EVAL) or source.unanswered(_SETS_EVAL, "train")
        if last == NEVER:
            site = site or source.place_matching(_LOADS_IN_EVAL)
            if not site or not any(_drops(module) for module in _some_modules(root)):
                return {}
        if not parts:
            return {}
        return {
            "eval_mode": type(root).__name__,
            "eval_mode_parts": parts,
            "eval_mode_after": last,
            "eval_mode_at": site,
            "eval_mode_set_at": source.call_within(type(root).train, "train"),
            "eval_mode_left_at": source.early_exit(_SETS_EVAL, "train"),
        }


def _evaluated_in_training():
    """Fields of evaluations in training mode; empty where nothing in the network works otherwise
    then. Of a trained one only where none was in eval mode; of a copy where the trained one was.
    """
    copy = modes.copy and modes.copy()
    if copy is not None:
        return _in_training(copy, modes.copy_steps, modes.copy_site, is_copy=True)
    network = modes.module and modes.module()
    if network is None or modes.is_in_eval_mode:
        return {}
    return _in_training(network, modes.steps, modes.site, is_copy=False)


def _in_training(network, steps, site, is_copy):
    parts = {type(part).__name__ for part in _some_modules(network) if _differs(part)}
    if not parts:
        return {}
    return {
        "evaluated_in_training": type(network).__name__,
        "evaluated_in_training_parts": sorted(parts),
        "evaluated_in_training_steps": steps,
        "evaluated_in_training_at": site,
        "evaluated_copy": is_copy,
    }


def _some_modules(root):
    return itertools.islice(root.modules(), MAX_MODULES)


def _differs(module):
    """Whether a part works otherwise in training mode, in which it is."""
    return module.training and (getattr(module, "track_running_stats", False) or _drops(module))


def _parts(root, updated):
    """Classes of what eval mode changes in a root that is in eval mode as a whole and is updated.

    Empty where one of its parts is in training mode: then somebody has chosen.
    """
    parts, is_updated = set(), False
    for module in _some_modules(root):
        if module.training:
            return []
        is_updated = is_updated or any(
            id(parameter) in updated for parameter in module.parameters(recurse=False)
        )
        if getattr(module, "track_running_stats", False) or _drops(module):
            parts.add(type(module).__name__)
    return sorted(parts) if is_updated else []


def _drops(module):
    """Whether it is one of torch's dropouts, or a recurrent or attention layer with one."""
    rates = (module.__dict__.get("p"), module.__dict__.get("dropout"))
    return type(module).__module__.startswith("torch.nn") and any(
        isinstance(rate, float) and rate > 0 for rate in rates
    )
