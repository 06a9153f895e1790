"""The training steps of a trace: forward, loss, backward, clip, update, as the Trainer of transformers does them."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, Callable, Dict

import torch

from .precision import OnHost
from .tracker import Tracker


class Loop:
    """Runs steps of a model under a tracker; everything is fake by then."""

    def __init__(self, tracker: Tracker, model: Any, optimizer: Any, make_batch: Callable[[], Any]) -> None:
        self.tracker = tracker
        self.model = model
        self.optimizer = optimizer
        self.make_batch = make_batch
        self.autocast: Any = None
        self.on_host = False
        self.clip = True
        self.accumulation = 1
        self.trained = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def run(self, steps: int) -> None:
        for step in range(steps):
            for _ in range(self.accumulation):
                self._micro_batch(step)
            self._update(step)

    def _micro_batch(self, step: int) -> None:
        mark = self.tracker.mark
        mark("forward", step)
        args, inputs = self.make_batch()
        self.tracker.tag_all([*args, *inputs.values()], "activations")
        loss = self._loss(args, inputs)
        del args, inputs
        if loss.requires_grad:
            mark("backward", step)
            loss.backward()

    def _loss(self, args: Any, inputs: Dict[str, Any]) -> torch.Tensor:
        with ExitStack() as context:
            if self.autocast is not None:
                context.enter_context(torch.autocast("cpu", dtype=self.autocast))
            if self.on_host:
                context.enter_context(OnHost(self.tracker))
            return loss_of(self.model(*args, **inputs))

    def _update(self, step: int) -> None:
        if self.optimizer is None:
            return
        if self.clip:
            self.tracker.mark("clip", step)
            torch.nn.utils.clip_grad_norm_(self.trained, 1.0, foreach=True)
        self.tracker.mark("optimizer", step)
        self.optimizer.step()
        for parameter, state in self.optimizer.state.items():
            module, _ = self.tracker.places.place_of(parameter)
            for value in state.values():
                if isinstance(value, torch.Tensor):
                    self.tracker.tag(value, "optimizer", module)
        self.tracker.mark("zero_grad", step)
        self.optimizer.zero_grad(set_to_none=True)


def loss_of(outputs: Any) -> torch.Tensor:
    """The loss in what a model returned: by name, or a scalar, or the mean of the first tensor."""
    loss = outputs.get("loss") if isinstance(outputs, dict) else getattr(outputs, "loss", None)
    if loss is None:
        loss = outputs if isinstance(outputs, torch.Tensor) else next(iter(_values(outputs)))
    return loss if loss.dim() == 0 else loss.float().mean()


def _values(outputs: Any) -> Any:
    return outputs.values() if isinstance(outputs, dict) else outputs
