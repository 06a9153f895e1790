"""Optimizers not in torch, with their public implementations' states and temporaries."""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterable, List, Tuple

import torch

BLOCK_8BIT = 256
"""Values that share one constant in an 8-bit state (bitsandbytes 0.43 and later; 2048 before)."""
LEAST_8BIT = 4096
"""Smaller tensors keep fp32 states in bitsandbytes (``min_8bit_size``)."""
State = Dict[str, torch.Tensor]


class HandWritten(torch.optim.Optimizer):
    """An optimizer of two parts: the state of a parameter, and one update of it."""

    def __init__(
        self,
        parameters: Iterable[torch.nn.Parameter],
        begin: Callable[[torch.Tensor], State],
        update: Callable[[torch.Tensor, State], Any],
    ) -> None:
        super().__init__(parameters, {})
        self._begin, self._update = begin, update

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state.update(self._begin(parameter))
                self._update(parameter, state)


def fused_states(count: int, eight_bit: bool) -> Callable[[torch.Tensor], State]:
    """``count`` states of bitsandbytes, in fp32 or blocks of 8 bits; the update is one kernel."""

    def begin(parameter: torch.Tensor) -> State:
        parameter = getattr(parameter, "_local_tensor", parameter)  # of FSDP2, this rank's share
        state = {}
        for index in range(1, count + 1):
            if eight_bit and parameter.numel() >= LEAST_8BIT:
                state["state%d" % index] = torch.zeros(parameter.shape, dtype=torch.uint8)
                blocks = -(-parameter.numel() // BLOCK_8BIT)
                state["absmax%d" % index] = torch.zeros(blocks, dtype=torch.float32)
            else:
                state["state%d" % index] = torch.zeros(parameter.shape, dtype=torch.float32)
        return state

    return begin


def in_place(_parameter: torch.Tensor, _state: State) -> None:
    """An update in one kernel."""


def came_begin(parameter: torch.Tensor) -> State:
    """CAME (Luo et al. 2023; ``came_pytorch``): momentum, row and column means of two moments."""
    state = {"exp_avg": torch.zeros_like(parameter)}
    if parameter.dim() < 2:
        return {**state, "exp_avg_sq": torch.zeros_like(parameter)}
    rows, columns = parameter.shape[:-1], parameter.shape[:-2] + parameter.shape[-1:]
    for name in ("exp_avg_sq", "exp_avg_res"):
        state[name + "_row"] = torch.zeros(rows, dtype=parameter.dtype)
        state[name + "_col"] = torch.zeros(columns, dtype=parameter.dtype)
    return state


def came_update(parameter: torch.Tensor, state: State) -> None:
    grad = parameter.grad
    assert grad is not None
    if grad.dtype in (torch.float16, torch.bfloat16):
        grad = grad.float()
    update = grad**2 + 1e-30
    if parameter.dim() < 2:
        update = state["exp_avg_sq"].rsqrt().mul_(grad)
    else:
        update = _factored(state, "exp_avg_sq", update).mul_(grad)
    update.div_((update.norm(2) / update.numel() ** 0.5).clamp_(min=1.0))
    momentum = state["exp_avg"]
    momentum.mul_(0.9).add_(update, alpha=0.1)
    if parameter.dim() >= 2:
        residual = (update - momentum) ** 2 + 1e-16
        update = _factored(state, "exp_avg_res", residual).mul_(momentum)
    else:
        update = momentum.clone()
    parameter.add_(update, alpha=-1e-4)


def _factored(state: State, name: str, squares: torch.Tensor) -> torch.Tensor:
    row, column = state[name + "_row"], state[name + "_col"]
    row.mul_(0.999).add_(squares.mean(dim=-1), alpha=0.001)
    column.mul_(0.999).add_(squares.mean(dim=-2), alpha=0.001)
    scaled = (row / row.mean(dim=-1, keepdim=True)).rsqrt_().unsqueeze(-1)
    return torch.mul(scaled, column.unsqueeze(-2).rsqrt())


def muon_begin(parameter: torch.Tensor) -> State:
    """Muon (Jordan et al. 2024): a momentum for matrices; AdamW's two states for the rest."""
    state = {"momentum_buffer": torch.zeros_like(parameter)}
    if parameter.dim() == 2:
        return state
    return {**state, "exp_avg_sq": torch.zeros_like(parameter)}


def muon_update(parameter: torch.Tensor, state: State) -> None:
    grad = parameter.grad
    assert grad is not None
    if parameter.dim() != 2:
        parameter.addcdiv_(
            state["momentum_buffer"], state["exp_avg_sq"].sqrt().add_(1e-8), value=-1e-4
        )
        return
    state["momentum_buffer"].lerp_(grad, 0.05)
    direction = _orthogonal(torch.lerp(grad, state["momentum_buffer"], 0.95))
    parameter.add_(direction.to(parameter.dtype), alpha=-1e-3)


def _orthogonal(matrix: torch.Tensor, steps: int = 5) -> torch.Tensor:
    """Newton-Schulz iteration in bf16."""
    value = matrix.bfloat16()
    if value.shape[0] > value.shape[1]:
        value = value.T
    value = value / (value.norm() + 1e-7)
    for _ in range(steps):
        gram = value @ value.T
        polynomial = torch.addmm(gram, gram, gram, beta=-4.775, alpha=2.0315)
        value = torch.addmm(value, polynomial, value, beta=3.4445)
    return value.T if matrix.shape[0] > matrix.shape[1] else value


def split_matrices(parameters: List[torch.nn.Parameter], model: Any) -> Tuple[List[Any], List[Any]]:
    """Matrices inside the layers, and the rest: embeddings, head, norms and biases, which Muon and
    GaLore leave to AdamW.
    """
    outside = set()
    for get in ("get_input_embeddings", "get_output_embeddings"):
        module = getattr(model, get, lambda: None)()
        if module:
            outside.update(id(weight) for weight in module.parameters())
    inner = [weight for weight in parameters if weight.dim() == 2 and id(weight) not in outside]
    chosen = {id(weight) for weight in inner}
    return inner, [weight for weight in parameters if id(weight) not in chosen]
