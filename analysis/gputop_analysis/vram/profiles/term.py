"""A size as a product of dimensions."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import NamedTuple


class Term(NamedTuple):
    """``numerator / denominator`` bytes times the product of ``factors``."""

    numerator: int
    denominator: int
    factors: tuple[str, ...]

    def bytes(self, dims: Mapping[str, int]) -> int:
        """For these dimensions; a part of a byte counts as a whole one."""
        return -(-self.numerator * prod(dims[name] for name in self.factors) // self.denominator)


class Sum(NamedTuple):
    """Several products in one block."""

    terms: tuple[Term, ...]

    def bytes(self, dims: Mapping[str, int]) -> int:
        """For these dimensions."""
        return sum(term.bytes(dims) for term in self.terms)


Size = Term | Sum
