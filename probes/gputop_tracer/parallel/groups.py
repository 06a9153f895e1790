"""Process groups that talk to nobody, and the streams that torch's wrappers put work on."""

from __future__ import annotations

from typing import Any, Callable, Dict

import torch
import torch.distributed as dist

_STREAMS: Dict[int, Any] = {}
_TRACKER: Dict[str, Any] = {}


def start(world: int) -> None:
    """The default group of a world of which this process is rank 0."""
    if dist.is_initialized():
        dist.destroy_process_group()
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=world, store=FakeStore())


def current_stream() -> int:
    """A small number for the current stream on the fake tensors' device; 0 is the default one."""
    ask = getattr(getattr(torch, "cpu", None), "current_stream", None)
    if ask is None:
        return 0
    stream = ask()
    _STREAMS.setdefault(id(stream), stream)
    return list(_STREAMS).index(id(stream))


def keep_shapes_aside(tracker: Any) -> None:
    """DTensor finds shapes by running operations on fake tensors of the whole: no memory."""
    first, _TRACKER["now"] = not _TRACKER, tracker
    try:
        from torch.distributed.tensor._sharding_prop import ShardingPropagator as Propagator
    except ImportError:
        return
    for name in ("_propagate_tensor_meta_non_cached", "_propagate_tensor_meta") if first else ():
        if hasattr(Propagator, name):
            setattr(Propagator, name, _aside(getattr(Propagator, name)))


def _aside(original: Callable[..., Any]) -> Callable[..., Any]:
    def propagate(*arguments: Any, **options: Any) -> Any:
        with _TRACKER["now"].on_host():
            return original(*arguments, **options)

    return propagate


current_stream()  # the first stream to be asked for is the default one
