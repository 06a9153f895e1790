"""Where in the model an operation runs: the path of its module and the index of the repeated layer.

Forward operations belong to the innermost module that runs. A backward operation belongs to the
module whose forward made its autograd node: nodes are numbered in the order of their making, and
the numbers at which modules began and ended are kept.
"""

from __future__ import annotations

from bisect import bisect_right
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, Set, Tuple

import torch
from torch import nn

Place = Tuple[str, int]
"""(module path, layer index or -1)"""

NOWHERE: Place = ("", -1)
LOSS: Place = ("loss", -1)
"""What runs after the head, in the model's own code or in the training loop's."""
_ACCUMULATE = (1 << 63) - 1


def _nothing() -> Any:
    return None


_node: Callable[[], Any] = getattr(torch._C, "_current_autograd_node", _nothing)
_next_number: Callable[[], int] = getattr(
    getattr(torch._C, "_autograd"), "_get_sequence_nr", lambda: 0
)


def repeated_layers(model: nn.Module) -> Dict[str, int]:
    """Paths of repeated layers and indices: of the list of like modules of most parameters."""
    best: Dict[str, int] = {}
    largest = 0
    for path, module in model.named_modules():
        blocks = list(module.children())
        if not isinstance(module, (nn.ModuleList, nn.Sequential, nn.ModuleDict)) or len(blocks) < 2:
            continue
        size = sum(parameter.numel() for parameter in module.parameters())
        if (
            len({type(block) for block in blocks}) == 1
            and size > largest
            and any(True for _ in blocks[0].children())
        ):
            names = [name for name, _ in module.named_children()]
            prefix = path + "." if path else ""
            best = {prefix + name: index for index, name in enumerate(names)}
            largest = size
    return best


class Places:
    """Follows the modules that run; ``now()`` says where."""

    def __init__(self) -> None:
        self.stack: List[Place] = []
        self._paths: Dict[int, Place] = {}
        self._numbers = [0]
        self._made_by = [NOWHERE]
        self._parameters: Dict[int, Place] = {}
        self._handles: List[Any] = []
        self.outside = NOWHERE
        """Where an operation of a forward belongs while no module runs."""
        self.heads: Set[str] = set()
        """Paths of modules that make logits: what their caller does after them is the loss."""
        self.left_outermost: Callable[[], Any] = _nothing
        """Called when the outermost module was left: the end of a forward or recomputation."""
        self.entered: Callable[[str, bool], Any] = lambda path, outermost: None

    def add(self, model: nn.Module, layers: Dict[str, int], prefix: str = "") -> None:
        """Know the modules and parameters of ``model``; ``layers`` as of ``repeated_layers``."""
        for path, module in model.named_modules():
            place_ = (prefix + path, layer_of(path, layers))
            self._paths[id(module)] = place_
            for parameter in module.parameters(recurse=False):
                self._parameters[id(parameter)] = place_

    def know(self, parameter: torch.Tensor, place: Place) -> None:
        """A parameter that a wrapper made belongs there."""
        self._parameters[id(parameter)] = place

    def adopt(self, wrapper: nn.Module, module: nn.Module) -> None:
        """A module that wraps another is where that one is."""
        self._paths[id(wrapper)] = self._paths.get(id(module), NOWHERE)

    def watch(self) -> None:
        """Hook into the calls of all modules, until ``unwatch``."""
        hooks = nn.modules.module
        self._handles = [
            hooks.register_module_forward_pre_hook(self._enter),
            # A recomputation under checkpointing stops early by an exception: leave the module then
            # as well.
            hooks.register_module_forward_hook(self._leave, always_call=True),
        ]

    def unwatch(self) -> None:
        for handle in self._handles:
            handle.remove()

    def place_of(self, parameter: torch.Tensor) -> Place:
        """Where a parameter belongs."""
        return self._parameters.get(id(parameter), NOWHERE)

    def now(self) -> Place:
        """Where the present operation runs."""
        if self.stack:
            return self.stack[-1]
        node = _node()
        if node is None:
            return self.outside
        number = node._sequence_nr()
        if number >= _ACCUMULATE:
            return self.place_of(getattr(node, "variable", None))  # type: ignore[arg-type]
        return self._made_by[bisect_right(self._numbers, number) - 1]

    @contextmanager
    def inside(self, place: Place) -> Iterator[None]:
        """What runs here belongs to ``place``, as if it were a module."""
        self.stack.append(place)
        self._note(place)
        try:
            yield
        finally:
            self._pop()

    def leave_to(self, place: Place) -> None:
        """From now on ``place`` is where an operation outside all modules belongs."""
        self.outside = place
        if not self.stack:
            self._note(place)

    def _enter(self, module: nn.Module, _inputs: Any) -> None:
        place_ = self._paths.get(id(module))
        if place_ is None:
            place_ = self.stack[-1] if self.stack else self.outside
        self.entered(place_[0], not self.stack)
        self.stack.append(place_)
        self._note(place_)

    def _leave(self, _module: nn.Module, _inputs: Any, _output: Any) -> None:
        if not self.stack:
            return
        if self.stack[-1][0] in self.heads:
            self.stack = [LOSS] * len(self.stack)
        self._pop()
        if not self.stack:
            self.left_outermost()

    def _pop(self) -> None:
        self.stack.pop()
        self._note(self.stack[-1] if self.stack else self.outside)

    def _note(self, place: Place) -> None:
        number = _next_number()
        if number == self._numbers[-1]:
            self._made_by[-1] = place
        else:
            self._numbers.append(number)
            self._made_by.append(place)


def layer_of(path: str, layers: Dict[str, int]) -> int:
    """The index of the repeated layer that a path lies in, or -1."""
    while path:
        if path in layers:
            return layers[path]
        path = path.rpartition(".")[0]
    return -1
