"""The matrix products of a transformer layer, as one rank runs them."""

from __future__ import annotations

from dataclasses import dataclass

from gputop_analysis.catalog.families import traits
from gputop_analysis.catalog.params import Linear, head_width, linears
from gputop_analysis.planner.layout import Floats
from gputop_analysis.vram.setup import ModelShape


@dataclass(frozen=True, slots=True)
class Product:
    """``inputs`` by ``outputs`` weights of one layer; ``split`` is tensor parallelism's."""

    inputs: int
    outputs: int
    split: str
    """``outputs`` (column parallel), ``inputs`` (row parallel); empty: no split."""
    part: str
    copies: int = 1

    def per_rank(self, tp: Floats) -> tuple[Floats, Floats]:
        """Inputs and outputs on one of ``tp`` ranks."""
        ones = tp * 0 + 1.0
        if self.split == "inputs":
            inputs = self.inputs / tp
        else:
            inputs = self.inputs * ones
        if self.split == "outputs":
            outputs = self.outputs / tp
        else:
            outputs = self.outputs * ones
        return inputs, outputs

    @property
    def weights(self) -> int:
        return self.inputs * self.outputs * self.copies


def products(shape: ModelShape, moe: bool) -> tuple[Product, ...]:
    """Of a layer; products of one input (q, k, v; gate, up) are one, as fused kernels run them."""
    by_input: dict[tuple[str, int], Product] = {}
    alone: list[Product] = []
    for linear in linears(shape, moe):
        split = _split(shape, linear)
        if split == "outputs" and (key := (linear.part, linear.inputs)) in by_input:
            other = by_input[key]
            by_input[key] = Product(
                other.inputs, other.outputs + linear.outputs, split, linear.part, linear.copies
            )
        elif split == "outputs":
            by_input[linear.part, linear.inputs] = Product(
                linear.inputs, linear.outputs, split, linear.part, linear.copies
            )
        else:
            alone.append(Product(linear.inputs, linear.outputs, split, linear.part, linear.copies))
    return (*by_input.values(), *alone)


def _split(shape: ModelShape, linear: Linear) -> str:
    family = traits(shape.family)
    if linear.name in (family.out, family.down, "o_proj"):
        return "inputs"
    if linear.name in ("q_a_proj", "kv_a_proj_with_mqa"):
        return ""
    return "outputs"


def attention_dims(shape: ModelShape) -> tuple[int, int]:
    """Width of a query-key head and of a value head."""
    if shape.mla_kv_rank:
        return shape.mla_nope_dim + shape.mla_rope_dim, shape.mla_v_dim
    width = head_width(shape)
    return width, width
