"""GaLore (Zhao et al. 2024, arXiv 2403.03507) as ``galore_torch`` has it: AdamW on gradients that
are projected to a low rank, matrix by matrix.
"""

from __future__ import annotations

import torch

from .states import State, fused_states


class GaLore:
    """State and update of one matrix."""

    def __init__(self, rank: int, eight_bit: bool) -> None:
        self.rank, self.eight_bit = rank, eight_bit

    def begin(self, parameter: torch.Tensor) -> State:
        """The projection by the singular vectors of the first gradient, and both moments."""
        grad = parameter.grad
        assert grad is not None
        left, _values, right = torch.linalg.svd(grad.float(), full_matrices=False)
        if _is_tall(grad):
            projection = right[: self.rank].to(grad.dtype)
        else:
            projection = left[:, : self.rank].to(grad.dtype)
        del left, right
        low = self._project(grad, projection)
        if self.eight_bit:
            return {"projection": projection, **fused_states(2, eight_bit=True)(low)}
        return {
            "projection": projection,
            "exp_avg": torch.zeros_like(low),
            "exp_avg_sq": torch.zeros_like(low),
        }

    def update(self, parameter: torch.Tensor, state: State) -> None:
        """One step of AdamW at low rank, brought back to the matrix's shape."""
        grad = parameter.grad
        assert grad is not None
        projection = state["projection"]
        low = self._project(grad, projection)
        if self.eight_bit:
            target = parameter.detach().clone()  # the kernel works on a stand-in meanwhile
            update = low.clone().zero_()
        else:
            state["exp_avg"].mul_(0.9).add_(low, alpha=0.1)
            state["exp_avg_sq"].mul_(0.999).addcmul_(low, low, value=0.001)
            update = state["exp_avg"] / state["exp_avg_sq"].sqrt().add_(1e-8)
            target = parameter
        full = update @ projection if _is_tall(grad) else projection @ update
        target.add_(full * 0.25, alpha=-1e-4)

    def _project(self, grad: torch.Tensor, projection: torch.Tensor) -> torch.Tensor:
        return grad @ projection.t() if _is_tall(grad) else projection.t() @ grad


def _is_tall(matrix: torch.Tensor) -> bool:
    return matrix.shape[0] >= matrix.shape[1]
