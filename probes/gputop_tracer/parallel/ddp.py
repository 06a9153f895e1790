"""DistributedDataParallel by its memory: the flat buckets that gradients are copied to and reduced
in.

torch's own reducer reads the gradients' addresses, which fake tensors do not have. Sizes and order
of the buckets as in ``torch/csrc/distributed/c10d/reducer.cpp``
(``compute_bucket_assignment_by_size``): the parameters in reverse, one dtype a bucket, the first of
at most 1 MiB, the others of 25 MiB.
"""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Dict, Iterator, List, Optional

import torch
from torch import nn

FIRST_BUCKET_BYTES = 1 << 20
BUCKET_MB = 25
BROADCAST_BYTES = 250 << 20
"""At construction the parameters are sent around in flat pieces of this size."""


class BucketedModel(nn.Module):
    """Stands for ``torch.nn.parallel.DistributedDataParallel`` of one rank."""

    def __init__(  # noqa: PLR0917  (torch's signature)
        self,
        module: nn.Module,
        device_ids: Any = None,
        output_device: Any = None,
        dim: int = 0,
        broadcast_buffers: bool = True,
        init_sync: bool = True,
        process_group: Any = None,
        bucket_cap_mb: Optional[float] = None,
        find_unused_parameters: bool = False,
        check_reduction: bool = False,
        gradient_as_bucket_view: bool = False,
        static_graph: bool = False,
        **_options: Any,
    ) -> None:
        super().__init__()
        self.module = module
        self.process_group = process_group
        self.gradient_as_bucket_view = gradient_as_bucket_view
        self.static_graph = static_graph
        self.find_unused_parameters = find_unused_parameters
        self.reducer = _Reducer()
        self.require_backward_grad_sync = True
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        _broadcast(list(module.parameters()))
        self.buckets: List[torch.Tensor] = []
        for group in assign(trained, int((bucket_cap_mb or BUCKET_MB) * (1 << 20))):
            bucket = group[0].detach().new_empty(sum(parameter.numel() for parameter in group))
            self.buckets.append(bucket)
            if gradient_as_bucket_view:
                _give_views(group, bucket)

    def forward(self, *inputs: Any, **options: Any) -> Any:
        return self.module(*inputs, **options)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        yield

    def join(self, *_arguments: Any, **_options: Any) -> Any:
        return contextlib.nullcontext()

    def register_comm_hook(self, state: Any, hook: Any) -> None:
        """Compression of the reduction is not counted."""

    def _set_static_graph(self) -> None: ...

    def _get_ddp_logging_data(self) -> Any:
        return {}


class _Reducer:
    """What trainers tell the reducer of a model that they drive themselves."""

    def prepare_for_backward(self, outputs: Any) -> None: ...

    def _rebuild_buckets(self) -> bool:
        return False


class BucketedLayers(nn.Module):
    """The same where some layers stand for all: no bucket reaches over a layer's end."""

    def __init__(self, module: nn.Module, place_of: Callable[[Any], Any]) -> None:
        super().__init__()
        self.module = module
        parts: Dict[Any, List[Any]] = {}
        for parameter in module.parameters():
            if parameter.requires_grad:
                parts.setdefault(place_of(parameter)[1], []).append(parameter)
        self.buckets: List[Any] = []
        for part in parts.values():
            for group in assign(part, BUCKET_MB << 20, BUCKET_MB << 20):
                size = sum(parameter.numel() for parameter in group)
                self.buckets.append((group[0].detach().new_empty(size), place_of(group[0])[0]))

    def forward(self, *inputs: Any, **options: Any) -> Any:
        return self.module(*inputs, **options)


def assign(parameters: List[Any], limit: int, first: int = FIRST_BUCKET_BYTES) -> List[List[Any]]:
    """The parameters of each bucket."""
    groups: List[List[Any]] = []
    open_groups: Dict[Any, List[Any]] = {}
    sizes: Any = {}
    for parameter in reversed(parameters):
        key = parameter.dtype
        if key not in open_groups:
            open_groups[key], sizes[key] = [], 0
            groups.append(open_groups[key])
        open_groups[key].append(parameter)
        sizes[key] += parameter.numel() * parameter.element_size()
        if sizes[key] >= (first if len(groups) == 1 else limit):
            del open_groups[key]
    return groups


def _broadcast(parameters: List[Any]) -> None:
    """The flat copy that the first rank's values are received in."""
    total = sum(parameter.numel() * parameter.element_size() for parameter in parameters)
    if total:
        parameters[0].detach().new_empty(min(total, BROADCAST_BYTES), dtype=torch.uint8)


def _give_views(group: List[Any], bucket: torch.Tensor) -> None:
    """Gradients become views of the bucket as soon as they are whole."""
    start = 0
    for parameter in group:
        end = start + parameter.numel()

        def point(own: Any, start: int = start, end: int = end) -> None:
            own.grad = bucket[start:end].view(own.shape)

        parameter.register_post_accumulate_grad_hook(point)
        start = end
