"""``torch.cuda`` as on a machine with GPUs: it answers scripts, and starts nothing."""

from __future__ import annotations

import collections
import contextlib
import types
from typing import Any

import torch

NAME = "NVIDIA H100 80GB HBM3"
CAPABILITY = (9, 0)
MEMORY_BYTES = 80 << 30
_PROPERTIES = types.SimpleNamespace(
    name=NAME,
    major=CAPABILITY[0],
    minor=CAPABILITY[1],
    total_memory=MEMORY_BYTES,
    multi_processor_count=132,
    is_integrated=False,
    is_multi_gpu_board=False,
    gcnArchName="",
    warp_size=32,
    max_threads_per_multi_processor=2048,
    regs_per_multiprocessor=65536,
    shared_memory_per_block_optin=232448,
    L2_cache_size=50 << 20,
    uuid="",
)
_ANSWERS = {
    "is_available": True,
    "is_initialized": True,
    "is_bf16_supported": True,
    "is_tf32_supported": True,
    "current_device": 0,
    "get_device_name": NAME,
    "get_device_capability": CAPABILITY,
    "get_device_properties": _PROPERTIES,
    "can_device_access_peer": True,
    "get_arch_list": ["sm_90"],
    "utilization": 0,
    "mem_get_info": (MEMORY_BYTES, MEMORY_BYTES),
    "memory_summary": "",
    "memory_snapshot": [],
    "get_allocator_backend": "native",
    "initial_seed": 0,
    "get_sync_debug_mode": 0,
    "is_current_stream_capturing": False,
}
_NOTHING = (
    "_lazy_init init synchronize set_device empty_cache ipc_collect manual_seed manual_seed_all "
    "seed seed_all set_rng_state set_rng_state_all reset_peak_memory_stats "
    "reset_max_memory_allocated reset_max_memory_cached _sleep reset_accumulated_memory_stats "
    "set_per_process_memory_fraction set_sync_debug_mode set_stream _lazy_call"
).split()
_ZERO = (
    "memory_allocated max_memory_allocated memory_reserved max_memory_reserved "
    "memory_cached max_memory_cached memory_usage"
).split()


class PretendedEvent:
    """A CUDA event that was always reached; 1 ms lies between any two."""

    def __init__(self, *_options: Any, **_more: Any) -> None:
        self.cuda_event = 0

    def record(self, stream: Any = None) -> None: ...

    def wait(self, stream: Any = None) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, _other: Any) -> float:
        return 1.0


class PretendedStream:
    """A stream with a number: what is allocated while it is the current one belongs to its pool."""

    current = 0
    made = 0

    def __init__(self, *_options: Any, **_more: Any) -> None:
        PretendedStream.made += 1
        self.stream_id = self.cuda_stream = PretendedStream.made
        self.device = torch.device("cuda:0")

    def wait_stream(self, stream: Any) -> None: ...

    def wait_event(self, event: Any) -> None: ...

    def synchronize(self) -> None: ...

    def record_event(self, event: Any = None) -> PretendedEvent:
        return event or PretendedEvent()

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    def __enter__(self) -> PretendedStream:
        self._before, PretendedStream.current = PretendedStream.current, self.stream_id
        return self

    def __exit__(self, *_error: Any) -> None:
        PretendedStream.current = self._before


def _default_stream(*_device: Any, **_more: Any) -> PretendedStream:
    stream = PretendedStream.__new__(PretendedStream)
    stream.stream_id = stream.cuda_stream = 0
    stream.device = torch.device("cuda:0")
    return stream


def _current_stream(*_device: Any, **_more: Any) -> PretendedStream:
    stream = _default_stream()
    stream.stream_id = stream.cuda_stream = PretendedStream.current
    return stream


class _Graph:
    """A CUDA graph: captured once, eagerly; its private pool is not told apart."""

    def __init__(self, *_options: Any, **_more: Any) -> None: ...

    def replay(self) -> None: ...

    def reset(self) -> None: ...

    def pool(self) -> int:
        return 0


@contextlib.contextmanager
def _passing(*_arguments: Any, **_more: Any) -> Any:
    yield


def _on_stream(stream: Any) -> Any:
    return stream if isinstance(stream, PretendedStream) else _passing()


def pretend(devices: int) -> None:
    """Replace functions of ``torch.cuda`` and ``torch.accelerator``, if any, in this process."""
    cuda = torch.cuda
    places = [cuda] + [
        getattr(cuda, name)
        for name in ("memory", "random", "amp", "streams")
        if hasattr(cuda, name)
    ]
    for namespace in places:
        for name, value in _ANSWERS.items():
            _put(namespace, name, lambda *_arguments, _value=value, **_more: _value)
        for name in _NOTHING:
            _put(namespace, name, lambda *_arguments, **_more: None)
        for name in _ZERO:
            _put(namespace, name, lambda *_arguments, **_more: 0)
        for name, new in _objects(devices).items():
            _put(namespace, name, new)
    cuda.default_generators = (torch.default_generator,) * devices  # type: ignore[misc]
    for name in ("range_push", "range_pop", "mark", "range_start", "range_end"):
        _put(cuda.nvtx, name, lambda *_arguments, **_more: 0)
    _put(cuda.nvtx, "range", _passing)
    if hasattr(torch, "accelerator"):
        _accelerator(devices)


def _objects(devices: int) -> Any:
    return {
        "device_count": lambda: devices,
        "_device_count_nvml": lambda: devices,
        "Event": PretendedEvent,
        "Stream": PretendedStream,
        "stream": _on_stream,
        "StreamContext": _on_stream,
        "current_stream": _current_stream,
        "default_stream": _default_stream,
        "device": _passing,
        "device_of": _passing,
        "_DeviceGuard": _passing,
        "memory_stats": lambda *_device, **_more: collections.defaultdict(int),
        "memory_stats_as_nested_dict": lambda *_device, **_more: {},
        "get_rng_state": lambda *_device, **_more: torch.get_rng_state(),
        "get_rng_state_all": lambda: [torch.get_rng_state()] * devices,
        "_get_generator": lambda *_device: torch.default_generator,
        "CUDAGraph": _Graph,
        "graph": _passing,
        "make_graphed_callables": lambda callables, *_arguments, **_more: callables,
        "_record_memory_history": lambda *_arguments, **_more: None,
        "_dump_snapshot": lambda *_arguments, **_more: None,
    }


def _accelerator(devices: int) -> None:
    module = torch.accelerator
    answers = {
        "is_available": True,
        "current_accelerator": torch.device("cuda"),
        "device_count": devices,
        "current_device_index": 0,
        "current_device_idx": 0,
        "memory_allocated": 0,
        "max_memory_allocated": 0,
        "memory_reserved": 0,
        "max_memory_reserved": 0,
        "get_memory_info": (MEMORY_BYTES, MEMORY_BYTES),
    }
    for name, value in answers.items():
        _put(module, name, lambda *_arguments, _value=value, **_more: _value)
    for name in ("synchronize", "empty_cache", "set_device_index", "set_device_idx", "set_stream"):
        _put(module, name, lambda *_arguments, **_more: None)
    _put(module, "reset_peak_memory_stats", lambda *_arguments, **_more: None)
    _put(module, "current_stream", _current_stream)


def _put(place: Any, name: str, new: Any) -> None:
    if hasattr(place, name):
        setattr(place, name, new)
