"""Expert parallelism on one rank: the experts that it holds, and the rows that travel to them and
back.

Each token's copies for its experts are sorted by expert, sent to the ranks that hold these by an
all-to-all, computed and sent back (Lepikhin et al. 2021, GShard, section 3;
``MoEAlltoAllTokenDispatcher`` of Megatron-LM without capacity,
``torchtitan/distributed/expert_parallel.py``). Routing is taken to be even: a rank gets as many
rows as it sends.
"""

from __future__ import annotations

from typing import Any, Dict, List

import torch
from torch import nn

Setup = Dict[str, Any]


def degree(setup: Setup) -> int:
    return int((setup.get("parallel") or {}).get("ep") or 1)


def refuse(setup: Setup) -> None:
    """What is not known of experts on several ranks.

    Raises:
        ValueError: another kind of parallelism that does not go with them here.
    """
    parallel = setup.get("parallel") or {}
    ways, tp = degree(setup), int(parallel.get("tp") or 1)
    if ways == 1:
        return
    if (parallel.get("sharding") or "none") not in ("none", "ddp", "fsdp2"):
        raise ValueError("EP is traced alone, under DDP and under FSDP2: use the formula tier")
    if tp > 1 and not (parallel.get("sequence_parallel") and int(parallel.get("etp") or 0) == 1):
        raise ValueError(
            "EP with TP is traced with sequence parallelism and whole experts (--etp 1)"
        )
    if setup.get("lora") or setup.get("quantized"):
        raise ValueError(
            "adapters and quantised weights under EP are not traced: use the formula tier"
        )


def spread(model: nn.Module, setup: Setup, notes: List[str]) -> None:
    """Cut a model on the meta device to the experts of one rank.

    Raises:
        ValueError: its experts are not kept as whole matrices with a first dimension of their own.
    """
    ways = degree(setup)
    modules: List[Any] = [module for module in model.modules() if _holds_experts(module)]
    if not modules:
        name = type(model).__name__
        raise ValueError(
            "the experts of %s are not traced over several ranks: use the formula tier" % name
        )
    for module in modules:
        _keep_own(module, ways)
    notes.append(
        "%d of %d experts on this rank; routing is taken to be even: a rank with more than its "
        "share of the tokens holds as much more of their activations"
        % (modules[0].num_experts, modules[0].num_experts * ways)
    )


def experts_of(model: nn.Module) -> List[nn.Module]:
    """The modules whose weights are of this rank's experts alone."""
    return [module for module in model.modules() if getattr(module, "_spread_over", 1) > 1]


def by_mesh(parameters: List[Any]) -> List[List[Any]]:
    """Parameters sharded over the same ranks: only those can be clipped and updated as one."""
    groups: Dict[int, List[Any]] = {}
    for parameter in parameters:
        groups.setdefault(id(getattr(parameter, "device_mesh", None)), []).append(parameter)
    return list(groups.values())


def _holds_experts(module: nn.Module) -> bool:
    count = getattr(module, "num_experts", None)
    own_parameters = list(module.parameters(recurse=False))
    return (
        bool(count)
        and len(own_parameters) > 1
        and all(parameter.dim() > 1 and parameter.shape[0] == count for parameter in own_parameters)
    )


def _keep_own(module: Any, ways: int) -> None:
    for name, parameter in list(module._parameters.items()):
        part = torch.empty(
            (parameter.shape[0] // ways, *parameter.shape[1:]), dtype=parameter.dtype, device="meta"
        )
        module._parameters[name] = nn.Parameter(part, requires_grad=parameter.requires_grad)
    module.num_experts //= ways
    module._spread_over = ways
    module.forward = _Dispatched(module.forward)


class _Dispatched:
    """The forward of a rank's experts, between two all-to-alls."""

    def __init__(self, own: Any) -> None:
        self.own = own

    def __call__(
        self, hidden: torch.Tensor, index: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        tokens, copies = index.shape
        _, order = torch.sort(index.reshape(-1))
        received = _AllToAll.apply(hidden[order // copies])
        rows = received.shape[0]
        at_once = (
            torch.empty((rows, 1), dtype=index.dtype),
            torch.empty((rows, 1), dtype=weights.dtype),
        )
        returned = _AllToAll.apply(self.own(received, *at_once))
        del received
        back = torch.empty_like(order)
        back[order] = torch.arange(rows, device=order.device)
        combined = returned[back].view(tokens, copies, hidden.shape[-1])
        return (combined * weights.unsqueeze(-1)).sum(dim=1).to(hidden.dtype)


class _AllToAll(torch.autograd.Function):
    """As many rows come as go; so do their gradients."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(rows)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return torch.empty_like(grads[0])
