"""What GaLore (Zhao et al. 2024, arXiv 2403.03507) keeps and makes for weights of linear layers: a
projection of rank ``r`` and moments of the projected gradient, table 1 of the paper; embeddings,
head and norms are left to AdamW. As ``galore_torch`` computes it.
"""

from __future__ import annotations

from gputop_analysis.catalog.params import Linear, linears
from gputop_analysis.vram.formula.dims import Dims, Number
from gputop_analysis.vram.formula.parts import Part
from gputop_analysis.vram.setup import GALORE

PROJECTED = ("layers", "experts")
"""Parts whose matrices are projected."""


def projects(d: Dims, part: Part) -> bool:
    """Whether a part's gradients are projected."""
    return d.setup.optimizer in GALORE and part.name in PROJECTED


def state_bytes(d: Dims, part: Part, projection_bytes: float, moment_bytes: float) -> float:
    """Of one parameter of a projected part: its share of the projection (``r`` values for each of
    the shorter side) and of the two moments (``r`` for each of the longer side). In fp32 the
    projection is a view, which holds all singular vectors of that side.

    Args:
        d: the setup.
        part: a part that is projected.
        projection_bytes: of one value of the projection.
        moment_bytes: of one value of a moment.
    """

    def of(linear: Linear) -> float:
        short, long = sorted((linear.inputs, linear.outputs))
        rank = min(d.setup.galore_rank, short)
        vectors = short if projection_bytes == 4 else rank
        return linear.copies * (vectors * short * projection_bytes + rank * 2 * long * moment_bytes)

    moe = part.name == "experts"
    layer = [linear for linear in linears(d.model, moe) if (linear.part == "experts") == moe]
    return sum(map(of, layer)) / sum(linear.params for linear in layer)


def update_bytes(d: Dims, gradient_bytes: float) -> Number:
    """Most that the update of one projected matrix makes: with a new projection the singular value
    decomposition in fp32 (a copy of the gradient, one more of its own, both sides' vectors), else
    the update brought back to full rank and scaled.
    """

    def decomposed(linear: Linear) -> float:
        short, long = sorted((linear.inputs, linear.outputs))
        copied = 2 if gradient_bytes < 4 else 1
        return 4.0 * (copied * short * long + short * (short + long))

    def brought_back(linear: Linear) -> float:
        return 2 * gradient_bytes * linear.inputs * linear.outputs

    layer = linears(d.model, moe=False)
    return max(*map(decomposed, layer), *map(brought_back, layer))
