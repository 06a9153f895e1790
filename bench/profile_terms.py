"""From the sizes of one storage in several traces to the product of dimensions that it is.

The same step is traced a few times with dimensions whose ratios are products of different primes. A
storage that is ``c x seq x hidden`` grows from trace to trace exactly as ``seq x hidden`` does and
as no other product: the ratios name the product, and what is left over is the constant ``c``, with
the width of the data type in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import combinations_with_replacement
from math import prod

from gputop_analysis.vram.profiles.term import Term

MOST_FACTORS = 4
LARGEST_DENOMINATOR = 16_384
"""Of the constant: one scale for so many 4-bit weights is the rarest that is met (QLoRA, double
quantisation).
"""


LARGEST_NUMERATOR = 4096


class UnclearError(ValueError):
    """The traces cannot tell two products apart: more of them, or better chosen dimensions, are
    needed.
    """


class Terms:
    """All products of the dimensions of some traces, by how they grow from trace to trace."""

    def __init__(self, dims: Sequence[Mapping[str, int]]) -> None:
        self.dims = dims
        self._by_growth: dict[tuple[Fraction, ...], tuple[str, ...]] = {}
        self._unclear: set[tuple[Fraction, ...]] = set()
        for factors in _products(sorted(dims[0])):
            sizes = [prod(each[name] for name in factors) for each in dims]
            grown = growth(sizes)
            known = self._by_growth.setdefault(grown, factors)
            if prod(dims[0][name] for name in known) != sizes[0]:
                self._unclear.add(grown)

    def of(self, sizes: Sequence[int]) -> Term | None:
        """The product that has these sizes in bytes, one for each trace; None where there is none.

        Raises:
            UnclearError: two products that differ by a constant grow so.
        """
        grown = growth(sizes)
        factors = self._by_growth.get(grown)
        if factors is None:
            return None
        if grown in self._unclear and factors:
            raise UnclearError(f"more than one product grows as {' x '.join(factors)} does")
        constant = Fraction(sizes[0], prod(self.dims[0][name] for name in factors))
        if factors and not plausible(constant):
            return None
        return Term(constant.numerator, constant.denominator, factors)


def plausible(constant: Fraction) -> bool:
    """Whether it can be a width in bytes, a count of parts or a share that is a power of two."""
    below = constant.denominator
    return (
        below <= LARGEST_DENOMINATOR
        and below & (below - 1) == 0
        and constant.numerator <= LARGEST_NUMERATOR
    )


def growth(sizes: Sequence[int]) -> tuple[Fraction, ...]:
    """Each size over the first."""
    return tuple(Fraction(size, sizes[0]) for size in sizes[1:])


def _products(names: Iterable[str]) -> Iterator[tuple[str, ...]]:
    """The empty product first, then by the number of factors: the simplest product of equal growth
    is taken.
    """
    names = tuple(names)
    for count in range(MOST_FACTORS + 1):
        yield from combinations_with_replacement(names, count)
