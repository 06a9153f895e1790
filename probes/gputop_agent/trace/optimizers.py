"""The optimizer that a setup asks for, as it behaves on CUDA."""

from __future__ import annotations

from typing import Any, Callable, List

import torch

Parameters = List[torch.nn.Parameter]


def make(name: str, parameters: Parameters) -> Any:
    """The optimizer called ``name`` over ``parameters``; None for ``none`` and where nothing is trained.

    Raises:
        ValueError: there is none of this name.
    """
    if name == "none" or not parameters:
        return None
    maker = _MAKERS.get(name)
    if maker is None:
        raise ValueError("no optimizer %s in the trace; it knows %s" % (name, ", ".join(sorted(_MAKERS))))
    return maker(parameters)


def _adamw(**kernel: bool) -> Callable[[Parameters], Any]:
    return lambda parameters: torch.optim.AdamW(parameters, lr=1e-4, **kernel)


_MAKERS = {
    "adamw": _adamw(foreach=True),
    "adamw-fused": _adamw(fused=True),
    "adamw-loop": _adamw(foreach=False),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=1e-3, foreach=True),
    "sgd-momentum": lambda parameters: torch.optim.SGD(parameters, lr=1e-3, momentum=0.9, foreach=True),
}
