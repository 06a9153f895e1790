"""Copies of weights and gradients in other types than the model's own."""

from __future__ import annotations

from typing import Any, Dict, List

import torch

from gputop_tracer.tracking.tracker import Tracker


class MasterWeights:
    """An optimizer over fp32 copies, which are cast back to the model's weights after each update
    (apex O2, DeepSpeed).

    With ``fp32_gradients`` the gradients are accumulated in fp32 from the start, as Megatron's
    ``main_grad`` does.
    """

    def __init__(
        self, tracker: Tracker, weights: List[Any], make: Any, fp32_gradients: bool
    ) -> None:
        self.tracker = tracker
        self.weights = weights
        self.masters = [torch.nn.Parameter(weight.detach().float()) for weight in weights]
        for weight, master in zip(weights, self.masters):
            location = tracker.places.place_of(weight)
            tracker.places.know(master, location)
            tracker.tag(master, "master_weights", location[0])
        self.inner = make(self.masters)
        self.kept = fp32_gradients
        if fp32_gradients:
            for weight, master in zip(weights, self.masters):
                master.grad = torch.zeros_like(master)
                tracker.tag(master.grad, "gradients")
                weight.register_post_accumulate_grad_hook(_adder(master))

    @property
    def state(self) -> Dict[Any, Any]:
        return self.inner.state

    @torch.no_grad()
    def step(self) -> None:
        if not self.kept:
            for weight, master in zip(self.weights, self.masters):
                if weight.grad is not None:
                    gradient = master.grad = weight.grad.float()
                    self.tracker.tag(gradient, "gradients")
                    weight.grad = None
        self.inner.step()
        for weight, master in zip(self.weights, self.masters):
            weight.copy_(master)

    def zero_grad(self, set_to_none: bool = True) -> None:
        for weight, master in zip(self.weights, self.masters):
            weight.grad = None
            if self.kept and master.grad is not None:
                master.grad.zero_()
            else:
                master.grad = None


def _adder(master: torch.Tensor) -> Any:
    def add(weight: torch.Tensor) -> None:
        if weight.grad is not None and master.grad is not None:
            master.grad.add_(weight.grad)
            weight.grad = None

    return add


class InBackward:
    """Each parameter has an own optimizer, run as soon as its gradient is there, then freed."""

    def __init__(self, tracker: Tracker, weights: List[Any], make: Any) -> None:
        self.tracker = tracker
        self.parts = {weight: make([weight]) for weight in weights}
        for weight in weights:
            weight.register_post_accumulate_grad_hook(self._update)

    @property
    def state(self) -> Dict[Any, Any]:
        return {}

    def step(self) -> None:
        """All was done in the backward."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Each gradient was freed after its update."""

    def _update(self, weight: Any) -> None:
        part = self.parts[weight]
        part.step()
        for state in part.state.values():
            self.tracker.tag_all(state.values(), "optimizer")
        weight.grad = None


class OnHost(torch.autograd.graph.saved_tensors_hooks):
    """What the forward keeps lies on the host until its backward
    (``torch.autograd.graph.save_on_cpu``).
    """

    def __init__(self, tracker: Tracker) -> None:
        def pack(tensor: torch.Tensor) -> Any:
            if isinstance(tensor, torch.nn.Parameter) or tensor.is_leaf or tensor.numel() < 1024:
                return tensor
            with tracker.on_host():
                return (torch.empty_like(tensor),)

        def unpack(packed: Any) -> torch.Tensor:
            if isinstance(packed, tuple):
                return torch.empty_like(packed[0])
            return packed

        super().__init__(pack, unpack)
