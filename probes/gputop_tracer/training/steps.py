"""A trace's training steps: forward, loss, backward, clip, update, as transformers' Trainer."""

from __future__ import annotations

from contextlib import ExitStack, nullcontext
from typing import Any, Callable, Dict, List

import torch

from gputop_tracer.parallel.expert_parallel import by_mesh
from gputop_tracer.tracking.tracker import Tracker

from .precision import OnHost


class Loop:
    """Runs steps of a model under a tracker; everything is fake by then."""

    def __init__(
        self, tracker: Tracker, model: Any, optimizer: Any, make_batch: Callable[[], Any]
    ) -> None:
        self.tracker = tracker
        self.model = model
        self.optimizer = optimizer
        self.make_batch = make_batch
        self.autocast: Any = None
        self.on_host = False
        self.clip = True
        self.accumulation = 1
        self.in_flight = 1
        """Micro-batches of a pipeline stage that wait for their backward, with the one at work."""
        self.no_sync: Callable[[], Any] = nullcontext
        """Around micro-batches whose gradients wait for a later one's."""
        self.announce: Callable[[bool], None] = lambda _is_last: None
        """Called before each backward pass, with whether it is the step's last."""
        self.passes_on = False
        """Whether what the model makes goes to a next stage, which sends its gradient back."""
        self.trained = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def run(self, steps: int) -> None:
        for step in range(steps):
            self._micro_batches(step)
            self._update(step)

    def _micro_batches(self, step: int) -> None:
        """One forward, one backward; of a pipeline those after the first steady turn are alike."""
        if self.in_flight == 1:
            count = self.accumulation
        else:
            count = min(self.accumulation, self.in_flight + 1)
        waiting: List[torch.Tensor] = []
        for number in range(count):
            with self.no_sync() if number + 1 < count else nullcontext():
                waiting.append(self._forward(step))
                if len(waiting) == self.in_flight:
                    self.announce(number + 1 == count and len(waiting) == 1)
                    self._backward(waiting.pop(0), step)
        while waiting:
            self.announce(len(waiting) == 1)
            self._backward(waiting.pop(0), step)

    def _forward(self, step: int) -> torch.Tensor:
        self.tracker.mark("forward", step)
        args, inputs = self.make_batch()
        self.tracker.tag_all([*args, *inputs.values()], "activations")
        return self._loss(args, inputs)

    def _backward(self, loss: torch.Tensor, step: int) -> None:
        if loss.requires_grad:
            self.tracker.mark("backward", step)
            gradient = torch.empty_like(loss) if self.passes_on else None
            self.tracker.tag_all([gradient], "communication")
            loss.backward(gradient)

    def _loss(self, args: Any, inputs: Dict[str, Any]) -> torch.Tensor:
        with ExitStack() as context:
            if self.autocast is not None:
                context.enter_context(torch.autocast("cpu", dtype=self.autocast))
            if self.on_host:
                context.enter_context(OnHost(self.tracker))
            loss = self._call(args, inputs)
            return loss if self.passes_on else loss_of(loss)

    def _call(self, args: Any, inputs: Dict[str, Any]) -> Any:
        return self.model(*args, **inputs)

    def _update(self, step: int) -> None:
        if self.optimizer is None:
            return
        if self.clip:
            self.tracker.mark("clip", step)
            for group in by_mesh(self.trained):
                torch.nn.utils.clip_grad_norm_(group, 1.0, foreach=True)
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
    if isinstance(outputs, dict):
        loss = outputs.get("loss")
    else:
        loss = getattr(outputs, "loss", None)
    if loss is None:
        if isinstance(outputs, torch.Tensor):
            loss = outputs
        else:
            loss = next(iter(_values(outputs)))
    return loss if loss.dim() == 0 else loss.float().mean()


def _values(outputs: Any) -> Any:
    return outputs.values() if isinstance(outputs, dict) else outputs
