"""Process groups that talk to nobody, and the streams that the wrappers of torch put their work on."""

from __future__ import annotations

from typing import Any, Dict

import torch
import torch.distributed as dist

_STREAMS = {}  # type: Dict[int, Any]


def start(world: int) -> None:
    """The default group of a world of which this process is rank 0."""
    if dist.is_initialized():
        dist.destroy_process_group()
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=world, store=FakeStore())


def current_stream() -> int:
    """A small number for the stream that is current on the fake tensors' device; 0 is the default one."""
    ask = getattr(getattr(torch, "cpu", None), "current_stream", None)
    if ask is None:
        return 0
    stream = ask()
    if not _STREAMS:
        _STREAMS[id(stream)] = stream
    _STREAMS.setdefault(id(stream), stream)
    return list(_STREAMS).index(id(stream))
