"""The optimizer that a setup asks for, as it behaves on CUDA."""

from __future__ import annotations

import importlib
from typing import Any, Callable, Dict, List

import torch

from . import states
from .galore import GaLore
from .states import HandWritten

Parameters = List[torch.nn.Parameter]


def make(name: str, parameters: Parameters, model: Any = None, rank: int = 128) -> Any:
    """The optimizer called ``name`` over ``parameters`` of ``model``, GaLore's of that ``rank``;
    None for ``none`` and where nothing is trained.

    Raises:
        ValueError: there is none of this name.
    """
    if name == "none" or not parameters:
        return None
    if name in _GALORE:
        return _galore(parameters, model, rank, eight_bit=name.endswith("8bit"))
    maker = _MAKERS.get(name)
    if maker is None:
        raise ValueError(
            "no optimizer %s in the trace; it knows %s"
            % (name, ", ".join(sorted([*_MAKERS, *_GALORE])))
        )
    return maker(parameters, model)


def load(name: str) -> None:
    """Import what an optimizer needs before tracking: modules make tensors of their own."""
    if name == "adafactor":
        importlib.import_module("transformers.optimization")


def of_recipe(setup: Dict[str, Any]) -> str:
    """The name of a setup's optimizer; DeepSpeed's AdamW is its fused kernel (``FusedAdam``)."""
    name = setup.get("optimizer") or "adamw"
    sharding = (setup.get("parallel") or {}).get("sharding") or "none"
    if name == "adamw" and (setup.get("recipe") == "deepspeed" or sharding.startswith("zero")):
        return "adamw-fused"
    return name


class Several:
    """Optimizers that are stepped one after the other, as one."""

    def __init__(self, parts: List[Any]) -> None:
        self.parts = [part for part in parts if part is not None]

    @property
    def state(self) -> Dict[Any, Any]:
        return {parameter: state for part in self.parts for parameter, state in part.state.items()}

    def step(self) -> None:
        for part in self.parts:
            part.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        for part in self.parts:
            part.zero_grad(set_to_none=set_to_none)


def _adamw(**kernel: Any) -> Callable[..., Any]:
    return lambda parameters, _model: torch.optim.AdamW(parameters, lr=1e-4, **kernel)


def _sgd(**options: Any) -> Callable[..., Any]:
    return lambda parameters, _model: torch.optim.SGD(parameters, lr=1e-3, foreach=True, **options)


def _fused(count: int, eight_bit: bool = False) -> Callable[..., Any]:
    return lambda parameters, _model: HandWritten(
        parameters, states.fused_states(count, eight_bit), states.in_place
    )


def _eight_bit(count: int) -> Callable[..., Any]:
    """The Trainer of transformers leaves embeddings' states in fp32 (``GlobalOptimManager``)."""

    def make(parameters: Parameters, model: Any) -> Any:
        embedding_ids = _embeddings(model)
        embeddings = [weight for weight in parameters if id(weight) in embedding_ids]
        others = [weight for weight in parameters if id(weight) not in embedding_ids]
        parts = [_fused(count)(embeddings, model)] if embeddings else []
        if others:
            parts.append(_fused(count, True)(others, model))
        return Several(parts)

    return make


def _embeddings(model: Any) -> Any:
    modules = model.modules() if model is not None else ()
    return {id(module.weight) for module in modules if isinstance(module, torch.nn.Embedding)}


def _paged(parameters: Parameters, _model: Any) -> Any:
    """States in unified memory, which PyTorch's allocator knows nothing of."""
    return HandWritten(parameters, lambda _parameter: {"step": 0}, states.in_place)  # type: ignore[dict-item]


def _adafactor(parameters: Parameters, _model: Any) -> Any:
    from transformers.optimization import Adafactor

    return Adafactor(parameters, lr=1e-3, scale_parameter=False, relative_step=False)


def _came(parameters: Parameters, _model: Any) -> Any:
    return HandWritten(parameters, states.came_begin, states.came_update)


def _galore(parameters: Parameters, model: Any, rank: int, eight_bit: bool) -> Any:
    inner, others = states.split_matrices(parameters, model)
    projected = GaLore(rank, eight_bit)
    if inner:
        matrices = HandWritten(inner, projected.begin, projected.update)
    else:
        matrices = None
    if not others:
        rest = None
    elif eight_bit:
        rest = _fused(2, eight_bit=True)(others, model)
    else:
        rest = torch.optim.AdamW(others, lr=1e-4, foreach=False)
    return Several([matrices, rest])


def _muon(parameters: Parameters, model: Any) -> Any:
    inner, others = states.split_matrices(parameters, model)
    if inner:
        muon = HandWritten(inner, states.muon_begin, states.muon_update)
    else:
        muon = None
    return Several([muon, torch.optim.AdamW(others, lr=1e-4, foreach=True) if others else None])


_GALORE = ("galore", "galore-8bit")
_MAKERS: Dict[str, Callable[..., Any]] = {
    "adamw": _adamw(foreach=True),
    "adamw-fused": _adamw(fused=True),
    "adamw-loop": _adamw(foreach=False),
    "adamw-8bit": _eight_bit(2),
    "adamw-paged": _paged,
    "adamw-paged-8bit": _paged,
    "adafactor": _adafactor,
    "lion": _fused(1),
    "lion-8bit": _eight_bit(1),
    "sgd": _sgd(),
    "sgd-momentum": _sgd(momentum=0.9),
    "muon": _muon,
    "came": _came,
}
