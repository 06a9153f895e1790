"""``torch.distributed`` of a traced rank: groups of the size asked for, talking to nobody."""

# torch is patched from outside here, in places that its type hints do not know.
# pyright: reportAttributeAccessIssue=false, reportIndexIssue=false, reportCallIssue=false
from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist

from gputop_tracer.parallel import groups
from gputop_tracer.parallel.ddp import BucketedModel

from .after_import import after_import
from .fake import CPU, Fakes


def replace(tracker: Any, note: Any, world: int, fakes: Fakes) -> None:
    """Replace the start of process groups and the wrappers that need real ones."""
    if not dist.is_available():
        return
    after_import(
        {
            "torch.distributed.fsdp.fully_sharded_data_parallel": lambda module: _on_fake_device(
                module, fakes
            )
        }
    )
    groups.keep_shapes_aside(tracker)
    original = dist.init_process_group

    def init(*_arguments: Any, **_options: Any) -> None:
        if dist.is_initialized():
            return
        from torch.testing._internal.distributed.fake_pg import FakeStore

        size = world or int(os.environ.get("WORLD_SIZE", "1") or 1)
        note(
            "Traced as rank 0 of %d; the other ranks are not run, --dp N says how many there are."
            % size
        )
        original("fake", rank=0, world_size=size, store=FakeStore())

    class Wrapped(BucketedModel):
        def __init__(self, module: Any, *arguments: Any, **options: Any) -> None:
            super().__init__(module, *arguments, **options)
            tracker.tag_all(
                self.buckets, "gradients" if self.gradient_as_bucket_view else "communication"
            )

    parallel = torch.nn.parallel
    parallel.DistributedDataParallel = parallel.distributed.DistributedDataParallel = Wrapped
    dist.init_process_group = init
    dist.distributed_c10d.init_process_group = init
    after_import({"torch.distributed.device_mesh": lambda module: _fake_mesh(module, init)})


def _fake_mesh(module: Any, init: Any) -> None:
    """A mesh of GPUs is one of the device that the fake tensors truly have."""
    module.init_process_group = init
    mesh_class = getattr(module, "DeviceMesh", None)
    if mesh_class is None:
        return
    original = mesh_class.__init__

    def made(self: Any, device_type: str, *arguments: Any, **options: Any) -> None:
        original(self, "cpu" if device_type == "cuda" else device_type, *arguments, **options)

    mesh_class.__init__ = made


def _on_fake_device(module: Any, fakes: Fakes) -> None:
    """FSDP1 is told the device that the fake tensors truly have, and its model is on the GPU."""
    original = module.FullyShardedDataParallel.__init__

    def init(self: Any, wrapped: Any, *arguments: Any, **options: Any) -> None:
        wrapped._apply(fakes.to_gpu)
        original(self, wrapped, *arguments, **dict(options, device_id=CPU))

    module.FullyShardedDataParallel.__init__ = init
