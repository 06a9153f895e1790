"""ZeRO 1 and 2 by their memory, as DeepSpeed has them.

DeepSpeed need not be installed: what it allocates is written by hand, after
``deepspeed/runtime/zero/stage_1_and_2.py`` (``contiguous_gradients``) and the defaults of
``deepspeed/runtime/zero/config.py``. What it keeps as one flat tensor over all layers
is one here too, of the size that all layers give, though only a few are traced.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Callable, Dict, List, NamedTuple, Optional

import torch
from torch.autograd import Variable

from gputop_tracer.tracking.place import NOWHERE
from gputop_tracer.tracking.tracker import Tracker


class Shared(NamedTuple):
    """What is trained, and over how many ranks it is shared."""

    tracker: Tracker
    weights: List[Any]
    values: int
    """Of the trained weights of all layers, the traced ones and those that they stand for."""
    world: int
    bucket: int
    """Values: ``reduce_bucket_size``."""
    overlaps: bool = False
    """``overlap_comm``: a second bucket is filled while the first is reduced."""

    @property
    def partition(self) -> int:
        """Values of one rank, padded (``flatten_dense_tensors_aligned``)."""
        return 2 * -(-self.values // (2 * self.world))

    @property
    def dtype(self) -> torch.dtype:
        return self.weights[0].dtype

    def empty(self, values: int, dtype: torch.dtype, category: str) -> torch.Tensor:
        """A tensor that belongs to no layer."""
        with self.tracker.places.inside(NOWHERE):
            tensor = torch.empty(values, dtype=dtype)
        self.tracker.tag(tensor, category)
        return tensor

    def buckets(self) -> torch.Tensor:
        """Of stages 1 and 2 (``setup_buckets``)."""
        values = self.bucket * (2 if self.overlaps else 1)
        return self.empty(values, self.dtype, "communication")

    def layer_of(self, weight: Any) -> int:
        return self.tracker.places.place_of(weight)[1]


class Partition:
    """The optimizer over this rank's part of a flat fp32 copy of the weights, piece by piece."""

    def __init__(
        self, shared: Shared, make: Callable[[List[Any]], Any], piece: int, largest: int
    ) -> None:
        self.shared = shared
        sizes = [
            min(piece, shared.partition - start) for start in range(0, shared.partition, piece)
        ]
        self.masters = [
            torch.nn.Parameter(shared.empty(size, torch.float32, "master_weights"))
            for size in sizes
        ]
        self._updates = [make([master]) for master in self.masters]
        self._largest = largest

    @property
    def state(self) -> Dict[Any, Any]:
        return {master: state for update in self._updates for master, state in update.state.items()}

    def update(self, kept: List[torch.Tensor]) -> None:
        """``step``: the norm of each gradient in fp64; of each piece a flat copy, one in fp32, the
        update; ``kept`` ends with the first.
        """
        shared = self.shared
        shared.empty(self._largest, torch.float64, "temporaries")
        for master, update in zip(self.masters, self._updates):
            flat = shared.empty(master.numel(), shared.dtype, "gradients")
            master.grad = shared.empty(master.numel(), torch.float32, "gradients")
            del flat
            kept.clear()
            update.step()
            master.grad = None


def whole(shared: Shared, make: Callable[[List[Any]], Any]) -> Partition:
    """The partition of stages 1 and 2: in one piece."""
    largest = max(weight.numel() for weight in shared.weights)
    return Partition(shared, make, shared.partition, min(largest, shared.partition))


class Stage1:
    """Whole gradients until the update, then reduced bucket by bucket (``reduce_gradients``). The
    bucket is there from the first gradient on (``process_gradients``; since DeepSpeed 0.13).
    """

    def __init__(self, shared: Shared, make: Callable[[List[Any]], Any]) -> None:
        self.shared, self.part = shared, whole(shared, make)
        self._bucket: Optional[torch.Tensor] = None
        for weight in shared.weights:
            weight.register_post_accumulate_grad_hook(self._begin)

    @property
    def state(self) -> Dict[Any, Any]:
        return self.part.state

    def _begin(self, _weight: Any) -> None:
        if self._bucket is None:
            self._bucket = self.shared.buckets()

    def step(self) -> None:
        shared = self.shared
        if (
            shared.values > shared.bucket
        ):  # this rank's share is begun while most gradients still wait
            gradients = [shared.empty(shared.partition, shared.dtype, "gradients")]
            self.zero_grad()
        else:
            self.zero_grad()
            reduced = shared.empty(shared.values, shared.dtype, "communication")
            gradients = [shared.empty(shared.partition, shared.dtype, "gradients")]
            del reduced
        self._bucket = None
        self.part.update(gradients)

    def zero_grad(self, set_to_none: bool = True) -> None:
        for weight in self.shared.weights:
            weight.grad = None


class Stage2:
    """Each gradient goes into a bucket at once; a full one is reduced to this rank's share."""

    def __init__(self, shared: Shared, part: Partition) -> None:
        self.shared, self.part = shared, part
        self._bucket: Optional[torch.Tensor] = None
        self._here: List[torch.Tensor] = []
        """This rank's share of the micro-batch at work (``grads_in_partition``), of the rank whose
        layers come last and which needs it first.
        """
        self._sum: List[torch.Tensor] = []
        """Of those before (``all_grad_tensors``)."""
        self._waiting = 0
        self._left: Dict[int, int] = {}
        """Gradients that each layer still lacks."""
        self._top = max(shared.layer_of(weight) for weight in shared.weights)
        for weight in shared.weights:
            weight.register_post_accumulate_grad_hook(self._take)

    @property
    def state(self) -> Dict[Any, Any]:
        return self.part.state

    def step(self) -> None:
        self.part.update(self._sum)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Each gradient was freed when it was taken."""

    def _take(self, weight: Any) -> None:
        if not self._left:
            self._begin()
        layer = self.shared.layer_of(weight)
        if weight.numel() > self.shared.bucket:
            self._reduce(weight.numel())
        else:
            self._waiting += weight.numel()
        weight.grad = None
        self._left[layer] -= 1
        if self._full(layer):
            self._reduce(self.shared.bucket)

    def _full(self, layer: int) -> bool:
        """Between the layers that a traced one stands for, buckets fill: so do they after each."""
        if self.shared.values <= self.shared.bucket or (layer >= 0 and self._left[layer]):
            return False
        return self._waiting > self.shared.bucket or 0 <= layer < self._top

    def _reduce(self, values: int) -> None:
        """Of a flat copy of the bucket that goes around (``allreduce_and_scatter``)."""
        self._waiting = 0
        torch.empty(values, dtype=self.shared.dtype)

    def _begin(self) -> None:
        self._bucket = self.shared.buckets()
        self._here = [self.shared.empty(self.shared.partition, self.shared.dtype, "gradients")]
        self._count()

    def _count(self) -> None:
        self._left = Counter(self.shared.layer_of(weight) for weight in self.shared.weights)
        Variable._execution_engine.queue_callback(self._end)  # type: ignore[attr-defined]

    def _end(self) -> None:
        """The backward pass is over."""
        with self.shared.tracker.places.inside(NOWHERE):
            self._reduce(min(self.shared.values, self.shared.bucket))
        self._bucket, self._left = None, {}
        if not self._sum:
            self._sum = self._here
        self._here = []


def stage_of(setup: Dict[str, Any]) -> int:
    """Of DeepSpeed, on one rank too; 0 for another sharding."""
    sharding = (setup.get("parallel") or {}).get("sharding") or "none"
    return int(sharding[-1]) if sharding.startswith("zero") else 0


def ranks(setup: Dict[str, Any]) -> int:
    """Data and context parallel ranks, which hold the same weights."""
    parallel = setup.get("parallel") or {}
    return int(parallel.get("dp") or 1) * int(parallel.get("cp") or 1)


def in_one_type(model: torch.nn.Module, dtype: torch.dtype) -> None:
    """DeepSpeed's engine casts the whole model to the type of the computation
    (``DeepSpeedEngine.__init__``).
    """
    for parameter in model.parameters():
        if parameter.is_floating_point():
            parameter.data = parameter.data.to(dtype)
