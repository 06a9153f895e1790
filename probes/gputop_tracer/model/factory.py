"""A model by ``module:callable`` or ``file.py:callable``, or the ``nn.Module`` itself, and a batch
for it.

The callable takes no arguments and gives an ``nn.Module``, or it is one. The batch comes from
``batch(micro_batch, seq)`` next to it (a tensor, a tuple or a dict), from what a module is given
along with it, else from the names of ``forward``'s arguments.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import os
import sys
from itertools import chain
from typing import Any, Callable, Dict, List, Tuple

import torch
from torch import nn
from torch.utils._pytree import tree_map

_TOKENS = ("input_ids", "ids", "idx", "tokens", "token_ids", "x_ids")
_LABELS = ("labels", "targets", "target", "label")
_IMAGES = ("pixel_values", "images", "image", "img", "imgs")


class NoBatchError(ValueError):
    """It is not known what the model is called with; the message says what to write."""


def load(name: str) -> Tuple[nn.Module, Any]:
    """The model on the meta device, and the module that the callable is in.

    Raises:
        ValueError: no such module or callable, or it gives no ``nn.Module``.
    """
    module_name, _, attribute = name.partition(":")
    if not attribute:
        raise ValueError("a factory is written module:callable, as in train:make_model")
    try:
        module = _module(module_name)
        make = getattr(module, attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError("cannot take %s: %s" % (name, error)) from error
    if isinstance(make, nn.Module):
        return make.to("meta").train(), module
    needed = _without_default(make)
    if needed:
        raise ValueError(
            "%s needs %s: write a function without arguments that calls it"
            % (name, ", ".join(needed))
        )
    with torch.device("meta"):
        model = make()
    if not isinstance(model, nn.Module):
        raise ValueError("%s gives a %s and not an nn.Module" % (name, type(model).__name__))
    return model.train(), module


def without_data(model: nn.Module) -> nn.Module:
    """A copy on the meta device, which holds no values; the model itself stays as it is.

    Raises:
        ValueError: it holds something that cannot be copied.
    """
    by_id: Dict[int, Any] = {}
    for tensor in chain(model.parameters(), model.buffers()):
        empty = torch.empty_like(tensor, device="meta")
        if isinstance(tensor, nn.Parameter):
            by_id[id(tensor)] = nn.Parameter(empty, tensor.requires_grad)
        else:
            by_id[id(tensor)] = empty
    try:
        return copy.deepcopy(model, by_id).train()
    except Exception as error:
        raise ValueError(
            "cannot copy the %s without its values: %s" % (type(model).__name__, error)
        ) from error


def batch_like(inputs: Any) -> Callable[[], Tuple[tuple, Dict[str, Any]]]:
    """Gives a call's inputs: a tensor, a tuple of arguments or a dict of named ones."""

    def make() -> Tuple[tuple, Dict[str, Any]]:
        return _arguments(tree_map(_empty, inputs))

    return make


def _empty(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.empty(value.shape, dtype=value.dtype)
    return value


def _module(name: str) -> Any:
    """A module that can be imported from the working directory, or the file of one."""
    folder, file = os.path.split(os.path.abspath(name))
    for folder_ in (os.getcwd(), *([folder] if name.endswith(".py") else [])):
        if folder_ not in sys.path:
            sys.path.insert(0, folder_)
    return importlib.import_module(file[: -len(".py")] if name.endswith(".py") else name)


def _without_default(make: Any) -> List[str]:
    try:
        taken = inspect.signature(make).parameters.values()
    except (TypeError, ValueError):  # it is written in C
        return []
    named = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [
        parameter.name
        for parameter in taken
        if parameter.default is parameter.empty and parameter.kind not in named
    ]


def batch_maker(
    model: nn.Module, module: Any, setup: Dict[str, Any]
) -> Callable[[], Tuple[tuple, Dict[str, Any]]]:
    """Gives the positional and named arguments of one call.

    Raises:
        NoBatchError: neither ``batch`` nor the names of the arguments say it.
    """
    rows, seq = int(setup.get("micro_batch") or 1), int(setup.get("seq") or 1)
    make_batch = getattr(module, "batch", None)
    if callable(make_batch):
        return lambda: _arguments(make_batch(rows, seq))
    named = _by_names(model, rows, seq, int(setup.get("image_size") or 224))
    return lambda: ((), {name: make() for name, make in named.items()})


def _arguments(value: Any) -> Tuple[tuple, Dict[str, Any]]:
    if isinstance(value, dict):
        return (), value
    if isinstance(value, (tuple, list)):
        return (tuple(value), {})
    return ((value,), {})


def _by_names(
    model: nn.Module, rows: int, seq: int, size: int
) -> Dict[str, Callable[[], torch.Tensor]]:
    makers: Dict[str, Callable[[], torch.Tensor]] = {}
    for name, parameter in inspect.signature(model.forward).parameters.items():
        make = _maker(name, model, rows, seq, size)
        needed = parameter.default is parameter.empty and parameter.kind in (
            parameter.POSITIONAL_ONLY,
            parameter.POSITIONAL_OR_KEYWORD,
            parameter.KEYWORD_ONLY,
        )
        if make is not None and (needed or name in _LABELS + _TOKENS):
            makers[name] = make
        elif needed:
            raise NoBatchError(
                "what is %s of %s.forward? Write `def "
                "batch(micro_batch, seq)` next to the factory that "
                "gives the arguments of one call" % (name, type(model).__name__)
            )
    return makers


def _maker(name: str, model: nn.Module, rows: int, seq: int, size: int) -> Any:
    if name in _TOKENS:
        return lambda: torch.empty((rows, seq), dtype=torch.long)
    if name in _IMAGES:
        return lambda: torch.empty((rows, 3, size, size))
    layers = (
        part for part in model.modules() if isinstance(part, (nn.Embedding, nn.Linear, nn.Conv2d))
    )
    first = next(layers, None)
    if name in _LABELS:
        shape = (rows, seq) if isinstance(first, nn.Embedding) else (rows,)
        return lambda: torch.empty(shape, dtype=torch.long)
    if name not in ("x", "input", "inputs", "data"):
        return None
    if isinstance(first, nn.Embedding):
        return lambda: torch.empty((rows, seq), dtype=torch.long)
    if isinstance(first, nn.Conv2d):
        channels = first.in_channels
        return lambda: torch.empty((rows, channels, size, size))
    if isinstance(first, nn.Linear):
        width = first.in_features
        return lambda: torch.empty((rows, width) if seq <= 1 else (rows, seq, width))
    return None
