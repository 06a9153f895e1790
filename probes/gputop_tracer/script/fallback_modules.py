"""A training step of a model class that a script defines and that can be built without arguments.

The script's imports, functions, classes and constants are executed, its other statements are not.
The batch follows from the first layer of the model; the loss is the mean of what the model returns,
the optimizer AdamW.
"""

from __future__ import annotations

import ast
import inspect
import os
import sys
import types
from typing import Any, Callable, List, Optional, Tuple

import torch
from torch import nn

from .fallback_source import NothingToBuildError, module_classes

BATCH = 8
TOKENS = 512
IMAGE = 224
_KEPT = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign)
Note = Callable[..., Any]


def train(path: str, note: Note) -> None:
    """Two steps of the largest model of the source that can be built.

    Raises:
        NothingToBuildError: there is no such class, or none of the batches that were tried fits it.
    """
    namespace, names = _definitions(path)
    models = sorted(
        filter(None, (_built(namespace.get(name)) for name in names)), key=_size, reverse=True
    )
    if not models:
        raise NothingToBuildError(
            "none of its module classes can be built without arguments: %s" % ", ".join(names)
            if names
            else "its source has no module class"
        )
    model = models[0].to("cuda").train()
    batch = _fitting_batch(model)
    name = type(model).__name__
    guess = "AdamW and a batch of %s, for the class %s alone" % (_told(batch), name)
    note(
        "Only the class %s was traced, with AdamW and a batch of %s." % (name, _told(batch)),
        guess=guess,
    )
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        loss = _scalar(model(*[tensor.to("cuda") for tensor in batch]))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def _definitions(path: str) -> Tuple[Any, List[str]]:
    """What the source defines, and the names of its module classes."""
    with open(path, "rb") as source:
        tree = ast.parse(source.read(), path)
    module = types.ModuleType(os.path.splitext(os.path.basename(path))[0])
    module.__file__ = path
    sys.modules.setdefault(module.__name__, module)
    for node in tree.body:
        if isinstance(node, _KEPT):
            try:
                exec(compile(ast.Module([node], []), path, "exec"), module.__dict__)
            except Exception:
                continue  # one definition that fails does not keep the others from being tried
    return module.__dict__, module_classes(tree)


def _built(kind: Any) -> Optional[nn.Module]:
    if not (inspect.isclass(kind) and issubclass(kind, nn.Module)):
        return None
    try:
        model: Any = kind()
    except Exception:
        return None
    if any(parameter.requires_grad for parameter in model.parameters()):
        return model
    return None


def _size(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _fitting_batch(model: nn.Module) -> List[torch.Tensor]:
    """The first of the batches that the first layer suggests which the model takes."""
    inputs = [
        name
        for name, parameter in inspect.signature(model.forward).parameters.items()
        if parameter.default is parameter.empty
    ]
    inputs = [name for name in inputs if name not in ("args", "kwargs")] or ["x"]
    problem: Optional[Exception] = None
    for first in _candidates(model):
        batch = [first] + [torch.zeros_like(first) for _ in inputs[1:]]
        try:
            with torch.no_grad():
                _scalar(model(*[parameter.to("cuda") for parameter in batch]))
            return batch
        except Exception as error:
            problem = problem or error
    raise NothingToBuildError(
        "%s takes none of the batches that were tried: %s" % (type(model).__name__, problem)
    )


def _candidates(model: nn.Module) -> List[torch.Tensor]:
    for layer in model.modules():
        if isinstance(layer, nn.Embedding):
            return [
                torch.zeros(BATCH, length, dtype=torch.long) for length in (TOKENS, 128, 64, 16)
            ]
        if isinstance(layer, nn.Conv2d):
            sides = (IMAGE, 32, 28, 64, 128, 256)
            return [torch.zeros(BATCH, layer.in_channels, side, side) for side in sides]
        if isinstance(layer, nn.Conv1d):
            return [torch.zeros(BATCH, layer.in_channels, length) for length in (1024, 16000, 128)]
        if isinstance(layer, nn.Conv3d):
            return [
                torch.zeros(BATCH, layer.in_channels, side, side, side) for side in (32, 64, 16)
            ]
        if isinstance(layer, (nn.LSTM, nn.GRU, nn.RNN)):
            return [
                torch.zeros(BATCH, 128, layer.input_size),
                torch.zeros(128, BATCH, layer.input_size),
            ]
        if isinstance(layer, (nn.Linear, nn.LayerNorm, nn.TransformerEncoderLayer)):
            width = _width(layer)
            images = [torch.zeros(BATCH, 1, 28, 28), torch.zeros(BATCH, 3, 32, 32)]
            return [torch.zeros(BATCH, width), torch.zeros(BATCH, 128, width), *images]
    return [torch.zeros(BATCH, 16)]


def _width(layer: nn.Module) -> int:
    if isinstance(layer, nn.Linear):
        return layer.in_features
    if isinstance(layer, nn.TransformerEncoderLayer):
        shape = layer.norm1.normalized_shape
    else:
        shape = layer.normalized_shape
    return int(shape[-1])  # type: ignore[index]


def _scalar(out: Any) -> torch.Tensor:
    """The mean of the first tensor of what a model returned."""
    if isinstance(out, torch.Tensor):
        return out.float().mean()
    loss: Any = out.get("loss") if isinstance(out, dict) else getattr(out, "loss", None)
    if isinstance(loss, torch.Tensor):
        return loss.float().mean()
    values = list(out.values()) if isinstance(out, dict) else list(out)
    return _scalar(
        next(value for value in values if isinstance(value, (torch.Tensor, tuple, list, dict)))
    )


def _told(batch: List[torch.Tensor]) -> str:
    return " and ".join("x".join(map(str, tensor.shape)) for tensor in batch)
