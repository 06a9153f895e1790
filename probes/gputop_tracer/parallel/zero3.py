"""ZeRO 3 by its memory, as DeepSpeed has it with its default options.

After ``deepspeed/runtime/zero/stage3.py`` (what is held), ``partitioned_param_coordinator.py``
(when weights are gathered and let go) and the defaults of ``config.py``. Weights lie aside; tensors
that stand for them are allocated: each one's share for good, the whole of it while a module needs
it.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, Optional

import torch
from torch import nn

from gputop_tracer.model import build
from gputop_tracer.tracking.place import NOWHERE, repeated_layers
from gputop_tracer.tracking.tracker import Tracker

from .zero import Partition, Shared, Stage2

PREFETCH = 50_000_000
"""Values gathered ahead of their use: ``stage3_prefetch_bucket_size``."""
PERSISTENT = 100_000
"""Smaller weights stay whole: ``stage3_param_persistence_threshold``."""
REUSE = 1_000_000_000
"""A weight used again within so many values is not let go: ``stage3_max_reuse_distance``."""
SUB_GROUP = 1_000_000_000
"""Values that are updated at a time: ``sub_group_size``."""
_SIDE_STREAM = 1


class Stage3(Stage2):
    """Bucket and this rank's gradients are held for good."""

    def __init__(self, shared: Shared, make: Callable[[List[Any]], Any]) -> None:
        largest = -(-max(weight.numel() for weight in shared.weights) // shared.world)
        super().__init__(shared, Partition(shared, make, SUB_GROUP, largest))
        self._bucket = shared.empty(shared.bucket, shared.dtype, "communication")
        self._here = [shared.empty(shared.partition, shared.dtype, "gradients")]

    def step(self) -> None:
        self.part.update([])

    def _begin(self) -> None:
        self._count()

    def _reduce(self, values: int) -> None:
        with on_side_stream(self.shared.tracker):
            super()._reduce(values)

    def _end(self) -> None:
        with self.shared.tracker.places.inside(NOWHERE):
            self._reduce(min(self.shared.values, self.shared.bucket))
        self._left = {}


class Gathering:
    """Gathers the weights of each module that runs, and lets them go."""

    def __init__(self, model: nn.Module, tracker: Tracker, world: int, repeated: float) -> None:
        self.tracker = tracker
        self.layers = repeated_layers(model)
        self.top = max(self.layers.values(), default=-1)
        self.whole: Dict[int, torch.Tensor] = {}
        """What stands for the weights that are whole now, by parameter."""
        self.shares: List[torch.Tensor] = []
        self.ahead: List[torch.Tensor] = []
        """What is gathered before its use, and kept over the turn from forward to backward."""
        self.late = False
        """Whether the last layer has begun its forward."""
        self.values = 0
        for module in model.modules():
            for parameter in module.parameters(recurse=False):
                self._share(parameter, world, repeated)
        for module in model.modules():
            if any(
                parameter.numel() >= PERSISTENT for parameter in module.parameters(recurse=False)
            ):
                module.register_forward_pre_hook(self._before)
                module.register_forward_hook(self._after)
        model.register_forward_pre_hook(self._begins)

    def _share(self, parameter: Any, world: int, repeated: float) -> None:
        path, layer = self.tracker.places.place_of(parameter)
        values = parameter.numel() if parameter.numel() < PERSISTENT else 0
        self.values += round(parameter.numel() * (repeated if layer >= 0 else 1)) - values
        with self.tracker.places.inside((path, layer)):
            share = torch.empty(values + -(-parameter.numel() // world), dtype=parameter.dtype)
        self.tracker.tag(share, "weights")
        self.shares.append(share)
        if not values and parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(self._let_go)

    def _begins(self, _model: nn.Module, _inputs: Any) -> None:
        if self.tracker.phase != "forward":
            return
        self.whole.clear()
        self.late = False
        self.ahead = [self._stand_in(min(PREFETCH, self.values), torch.float16, NOWHERE)]

    def _before(self, module: nn.Module, inputs: Any) -> None:
        parameters = list(module.parameters(recurse=False))
        for parameter in parameters:
            self._turn(self.tracker.places.place_of(parameter)[1])
            self._gather(parameter)
        if inputs and isinstance(inputs[0], torch.Tensor):
            first = inputs[0]
        else:
            first = None
        if first is not None and first.requires_grad:
            # its gradient tells that frozen weights are done, too
            first.register_hook(lambda _grad: self._let_go_all(parameters))

    def _after(self, module: nn.Module, _inputs: Any, out: Any) -> None:
        parameters = [
            parameter_
            for parameter_ in module.parameters(recurse=False)
            if parameter_.numel() >= PERSISTENT
        ]
        if self.tracker.phase == "backward":
            return  # recomputed: the backward of the same module comes soon
        if not self.late:
            for parameter in parameters:
                self._let_go(parameter)
        first = out if isinstance(out, torch.Tensor) else None
        if first is not None and first.requires_grad:
            first.register_hook(lambda _grad: self._before(module, ()))

    def _turn(self, layer: int) -> None:
        """What is near its next use stays; it goes once the backward has passed the last layer."""
        backward = self.tracker.phase == "backward"
        if layer == self.top and not backward and not self.late:
            self.late = True
            self.ahead.append(self._stand_in(min(REUSE // 2, self.values), torch.float16, NOWHERE))
        if backward and 0 <= layer < self.top and len(self.ahead) > 1:
            self.ahead.pop()
        if backward and layer == 0:  # nothing is left to be gathered ahead
            self.ahead.clear()

    def _gather(self, parameter: Any) -> None:
        path, layer = self.tracker.places.place_of(parameter)
        within = self.late and layer in (self.top, -1)
        if (
            parameter.numel() >= PERSISTENT
            and id(parameter) not in self.whole
            and not (within and self._kept())
        ):
            self.whole[id(parameter)] = self._stand_in(
                parameter.numel(), parameter.dtype, (path, layer)
            )

    def _kept(self) -> bool:
        """Whether what is kept over the turn stands for last layer and head as well."""
        return len(self.ahead) > 1

    def _let_go(self, parameter: Any) -> None:
        self.whole.pop(id(parameter), None)

    def _let_go_all(self, parameters: List[Any]) -> None:
        for parameter in parameters:
            self._let_go(parameter)

    def _stand_in(self, values: int, dtype: torch.dtype, place: Any) -> torch.Tensor:
        with on_side_stream(self.tracker), self.tracker.places.inside(place):
            tensor = torch.empty(values, dtype=dtype)
        self.tracker.tag(tensor, "communication")
        return tensor


def gather(
    model: nn.Module, tracker: Tracker, world: int, repeated: float, head: Optional[nn.Module]
) -> nn.Module:
    """Give a model on the meta device its weights, shared over ``world`` ranks."""
    with tracker.on_host():
        build.materialize(model)
    layers = repeated_layers(model)
    tracker.layers = {**tracker.layers, **layers}
    tracker.places.add(model, layers)
    for path, module in model.named_modules():
        if module is head:
            tracker.places.heads.add(path)
        for buffer in module.buffers(recurse=False):
            tracker.tag(buffer, "weights", path)
    for parameter in model.parameters():
        tracker.leave_out(parameter)
        tracker.watch_gradient(parameter)
    model.__dict__["gathering"] = Gathering(model, tracker, world, repeated)
    return model


@contextmanager
def on_side_stream(tracker: Tracker) -> Iterator[None]:
    """Gathering and reducing have a stream of their own."""
    before, tracker.stream = tracker.stream, lambda: _SIDE_STREAM
    try:
        yield
    finally:
        tracker.stream = before
