"""What a stack recorded by the allocator tells: the line that asked, the layer, the kind of tensor.

A stack is a list of ``{"filename", "line", "name"}``, the innermost first; C++ and Python frames
mixed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

NO_FRAMES = "(no stack was recorded)"
CPP_ONLY = "(C++ without an operator)"
WEIGHTS, GRADIENTS, OPTIMIZER = "weights", "gradients", "optimizer"
ACTIVATIONS, COMMUNICATION, TEMPORARIES = "activations", "communication", "temporaries"
WORKSPACE, CASTS, UNKNOWN = "workspaces", "autocast copies", "unknown"
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/torch/", "/lib/python3")
_TORCH_FILES = frozenset(
    [
        "module.py",
        "functional.py",
        "linear.py",
        "container.py",
        "conv.py",
        "normalization.py",
        "activation.py",
        "sparse.py",
        "dropout.py",
        "batchnorm.py",
        "rnn.py",
        "loss.py",
        "transformer_engine.py",
        "optimizer.py",
        "adam.py",
        "adamw.py",
        "sgd.py",
        "adagrad.py",
        "rmsprop.py",
        "lbfgs.py",
        "nadam.py",
        "radam.py",
        "adamax.py",
        "_foreach_utils.py",
        "_functional.py",
        "_tensor.py",
        "__init__.py",
        "graph.py",
        "function.py",
        "memory.py",
        "autocast_mode.py",
        "grad_mode.py",
        "_contextlib.py",
        "init.py",
        "distributed.py",
        "checkpoint.py",
        "comm.py",
        "einops.py",
        "lr_scheduler.py",
        "grad_scaler.py",
        "clip_grad.py",
        "pooling.py",
        "embedding.py",
    ]
)
"""Base names of PyTorch's own files, for stacks whose folders were cut off."""
_UPDATES = ("adam.py", "adamw.py", "sgd.py", "optimizer.py", "/optim/", "adagrad.py", "rmsprop.py")
_PLACING = ("_apply", "convert", "__init__", "reset_parameters", "to_empty", "from_pretrained")
_PLACING += ("load_state_dict", "_load_pretrained_model", "<listcomp>.convert")
_IN_BACKWARD = ("torch::autograd::Node::operator", "autograd::Engine", "AccumulateGrad")
_OPERATOR = re.compile(r"VariableType::\(anonymous namespace\)::(\w+)\(|at::_ops::(\w+)::")
_KERNEL = re.compile(r"wrapper_[A-Z]\w*?_(\w+)\(")
_COLLECTIVE = ("c10d::", "ProcessGroup", "nccl", "Reducer")


class Frame:
    """One level of a stack."""

    __slots__ = ("file", "line", "name")

    def __init__(self, file: str, line: int, name: str) -> None:
        self.file, self.line, self.name = file, line, name

    def __str__(self) -> str:
        base = self.file.rsplit("/", 1)[-1]
        return f"{base}:{self.line} {self.name}" if base else self.name

    @property
    def is_python(self) -> bool:
        """Whether it is of Python code."""
        return self.file.endswith(".py") or self.file.startswith("<")

    @property
    def is_library(self) -> bool:
        """Whether it is of PyTorch or another installed package."""
        if "/" in self.file:
            return any(part in self.file for part in _LIBRARIES)
        return self.file in _TORCH_FILES or self.file.startswith("<")


def frames_of(raw: Any) -> Iterator[Frame]:
    """The levels of a stack as a file has it; what is malformed is left out."""
    if not isinstance(raw, (list, tuple)):
        return
    for level in raw:
        if isinstance(level, dict):
            line = level.get("line")
            number = line if isinstance(line, int) else 0
            file = _clean(level.get("filename")).replace("\\", "/")
            yield Frame(file, number, _clean(level.get("name")))


def _clean(value: Any) -> str:
    """Text of one line that a terminal can show."""
    text = value[:400] if isinstance(value, str) else ""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def site(raw: Any) -> str:
    """The line that asked: the user's innermost, else any Python, else the outermost operator."""
    library = operator = kernel = ""
    in_backward = False
    for frame in frames_of(raw):
        if frame.is_python:
            if not frame.is_library:
                return str(frame)
            library = library or str(frame)
            continue
        in_backward = in_backward or _has(frame.name, _IN_BACKWARD)
        match = _OPERATOR.search(frame.name)
        if match:
            operator = match[1] or match[2]
        elif not kernel and (match := _KERNEL.search(frame.name)):
            kernel = match[1]
    operator = operator or kernel
    if library:
        return library
    if not operator:
        return CPP_ONLY if raw else NO_FRAMES
    return f"{operator} in the backward" if in_backward else operator


def layer(raw: Any) -> str:
    """The ``forward`` lines of the user's modules, outermost first; empty outside a forward."""
    lines = [
        f"{frame.file.rsplit('/', 1)[-1]}:{frame.line}"
        for frame in frames_of(raw)
        if frame.is_python and frame.name == "forward" and not frame.is_library
    ]
    return " > ".join(reversed(lines))


def category(raw: Any) -> str:
    """The kind of tensor as its stack tells: by the deepest sign of what went on."""
    frames = list(frames_of(raw))
    if not frames:
        return UNKNOWN
    for kind, is_sign in _SIGNS:
        if any(map(is_sign, frames)):
            return kind
    return _of_functions({frame.name for frame in frames if frame.is_python})


def _of_functions(names: set[str]) -> str:
    """The kind of tensor by the Python functions on its stack."""
    if "backward" in names:
        return GRADIENTS
    if not names.isdisjoint(_PLACING):
        return WEIGHTS
    if "forward" in names or "_call_impl" in names:
        return ACTIVATIONS
    return TEMPORARIES if names else UNKNOWN


def _has(text: str, parts: tuple[str, ...]) -> bool:
    return any(part in text for part in parts)


def _updates_weights(frame: Frame) -> bool:
    return frame.is_python and _has("/" + frame.file, _UPDATES)


_SIGNS: tuple[tuple[str, Callable[[Frame], bool]], ...] = (
    (COMMUNICATION, lambda frame: _has(frame.name, _COLLECTIVE)),
    (OPTIMIZER, _updates_weights),
    (WORKSPACE, lambda frame: "getNewWorkspace" in frame.name),
    (GRADIENTS, lambda frame: _has(frame.name, _IN_BACKWARD)),
    (CASTS, lambda frame: "autocast::cached_cast" in frame.name),
)
"""What a frame anywhere on a stack says of its tensor, the surest sign first."""


def is_empty_cache(raw: Any) -> bool | None:
    """Whether a segment was given back by ``empty_cache``; None where no stack was recorded."""
    names = [frame.name for frame in frames_of(raw)]
    if not names:
        return None
    return any("emptyCache" in name or name == "empty_cache" for name in names)
