"""The tracker for a script: only what carries the GPU's mark counts."""

from __future__ import annotations

from typing import Any

import torch

from gputop_tracer.parallel import groups
from gputop_tracer.tracking.tracker import Tracker

from . import cuda
from .fake import on_gpu


class ScriptTracker(Tracker):
    """Tracks storages of fake tensors on the GPU; tensors on the host pass by."""

    def __init__(self) -> None:
        super().__init__()
        self.stream = _stream

    def track(self, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            if _counts(value):
                super().track(value)
        elif isinstance(value, (tuple, list)):
            for item in value:
                self.track(item)

    def tag(self, tensor: torch.Tensor, category: str, place: str = "") -> None:
        if _counts(tensor):
            super().tag(tensor, category, place)


def _counts(tensor: Any) -> bool:
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None:
        return on_gpu(tensor)
    tensors = [getattr(tensor, name) for name in flatten()[0]]
    return all(_counts(tensor_) for tensor_ in tensors if isinstance(tensor_, torch.Tensor))


def _stream() -> int:
    """That of the script, or that of a library of torch which takes the fake device at its word."""
    number = groups.current_stream()
    return 1000 + number if number else cuda.PretendedStream.current
