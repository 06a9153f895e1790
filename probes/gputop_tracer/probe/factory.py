"""A model by ``module:callable`` with real values on a real device, and its batches."""

from __future__ import annotations

from typing import Any, Callable, Dict, Tuple

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from gputop_tracer.model import factory

Call = Tuple[tuple, Dict[str, Any]]
"""Positional and named arguments."""


def made(name: str, device: str) -> Tuple[nn.Module, Any]:
    """The model, and the module that the callable is in; a trace has found before that there is
    one.

    Raises:
        ImportError, AttributeError: there is none.
    """
    module_name, _, attribute = name.partition(":")
    module = factory._module(module_name)
    make = getattr(module, attribute)
    if isinstance(make, nn.Module):
        return make.to(device).train(), module
    with torch.device(device):
        return make().to(device).train(), module


def batches(
    model: nn.Module, module: Any, setup: Dict[str, Any], device: str
) -> Callable[[], Call]:
    """Gives what one call takes: the user's own values where there is a ``batch``, else such as fit
    any model.

    Raises:
        factory.NoBatchError: it is not known what the model is called with.
    """
    make = factory.batch_maker(model, module, setup)
    has_batch = callable(getattr(module, "batch", None))

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        return (tensor if has_batch else _filled(tensor)).to(device)

    return lambda: tree_map_only(torch.Tensor, moved, make())


def _filled(tensor: torch.Tensor) -> torch.Tensor:
    """Class and token 0 are in any model; a step's memory does not depend on values."""
    if tensor.is_floating_point():
        return torch.randn_like(tensor)
    return torch.zeros_like(tensor)
