"""The run's number of steps, where a trainer knows it: Hugging Face's Trainer or Lightning."""

import math
import sys

from gputop_agent.runtime import frames, variables

_HF_FILE = "transformers/trainer.py"
_LIGHTNING_PARTS = ("lightning/pytorch/", "pytorch_lightning/")


def total_steps():
    """Optimizer steps of the whole run, of the trainer on the calling thread's stack; or None."""
    for frame in frames.stack(sys._getframe(1), 128):
        name = frames.short_name(frame.f_code.co_filename)
        if name.endswith(_HF_FILE):
            steps = _from_hugging_face(variables.value(frame, "self"))
        elif any(part in name for part in _LIGHTNING_PARTS):
            steps = _from_lightning(variables.value(frame, "self"))
        else:
            continue
        if steps:
            return steps
    return None


def _from_hugging_face(trainer):
    state = getattr(trainer, "state", None)
    steps = getattr(state, "max_steps", None)
    return steps if isinstance(steps, int) and steps > 0 else None


def _from_lightning(owner):
    fields = getattr(owner, "__dict__", {})
    trainer = fields.get("trainer", fields.get("_trainer", owner))
    if type(trainer).__name__ != "Trainer":
        return None
    if isinstance(trainer.max_steps, int) and trainer.max_steps > 0:
        # it counts the updates of each optimizer, and how many a step has is not known
        return trainer.max_steps if len(trainer.optimizers) == 1 else None
    batches, epochs = trainer.num_training_batches, trainer.max_epochs
    if not epochs or epochs < 0 or not math.isfinite(batches):
        return None
    return math.ceil(batches / trainer.accumulate_grad_batches) * epochs
