"""A pass over a micro-batch as a fully sharded rank runs it, composed from the profile of one GPU
and the number of ranks.

What a layer computes is the same on every rank; FSDP changes where its weights and gradients are.
Weights become shares; the whole of them is gathered before a layer's forward and backward pass and
let go after it; a whole gradient is reduced to a share when the layer below is at work. What lies
outside of the layers (the root unit) stays gathered from the first layer to the end of the backward
pass (``_fsdp/_runtime_utils.py`` in PyTorch's ``distributed/fsdp``).
"""

from __future__ import annotations

from typing import NamedTuple

from gputop_analysis.vram.eventlog import EventLog
from gputop_analysis.vram.profiles.term import Size, Sum, Term

GATHERING, REDUCING = 1, 2
"""Streams of gathered weights and of reduced gradients, each with a pool of its own."""
BOUNDARY = Term(2, 1, ("hidden", "micro_batch", "seq"))
"""A layer's input, in 16 bits."""
_COLUMNS = ("bytes", "stream", "category", "operator", "module", "layer")
_OUTSIDE = -1


class Sharding(NamedTuple):
    """How the weights of a model lie over ranks."""

    ranks: int
    wide: bool = False
    """Shares are in fp32, while the computation is in 16 bits (mixed precision of FSDP)."""
    flat: bool = False
    """FSDP1: the weights of a layer are one flat tensor, and gathered one layer at a time. FSDP2
    gathers the next one while one is at work.
    """
    keeps_boundaries: bool = False
    """FSDP1's hooks keep the input of each frozen layer, and its gradient, until the backward pass
    is over (``formula/habits.py``).
    """

    def share(self, size: Size) -> Size:
        """Of a storage of that size."""
        if isinstance(size, Sum):
            return Sum(tuple(self._share(term) for term in size.terms))
        return self._share(size)

    def _share(self, term: Term) -> Term:
        return Term(term.numerator * (1 + self.wide), term.denominator * self.ranks, term.factors)


def sharded(
    terms: tuple[Term, ...], log: EventLog, sharding: Sharding
) -> tuple[tuple[Size, ...], EventLog]:
    """The terms and the log of one rank; ``log`` holds the weights, then a step of all layers."""
    rank = _Rank(terms, log, sharding)
    rank.write()
    return tuple(rank.terms), rank.log()


class _Rank:
    """A log that is written anew, event by event."""

    def __init__(self, terms: tuple[Term, ...], log: EventLog, sharding: Sharding) -> None:
        self.source, self.sharding = log, sharding
        self.terms: list[Size] = list(terms)
        self._index = {term: at for at, term in enumerate(self.terms)}
        self.strings = [*log.strings]
        self.columns = {name: getattr(log, name)[:1] for name in _COLUMNS}
        self.events: list[int] = []
        self.marks: list[tuple[int, str, int]] = []
        self.number: dict[int, int] = {}
        """The new number of each storage of the source that is there."""
        self.weights: dict[int, list[int]] = {}
        """The source's storages of weights, by layer; each unit of them is one storage here."""
        self.gathered: dict[int, list[int]] = {}
        self.whole: dict[int, list[int]] = {}
        """The source's gradients that are not reduced yet, by layer."""
        self.waiting: list[int] = []
        """Whole gradients whose shares are being reduced."""
        self.boundaries: list[int] = []

    def log(self) -> EventLog:
        return self.source.played(
            self.events, **self.columns, marks=tuple(self.marks), strings=tuple(self.strings)
        )

    def write(self) -> None:
        """All phases, one after the other."""
        events = self.source.events
        ends = [at for at, _, _ in self.source.marks[1:]] + [len(events)]
        for (start, phase, step), end in zip(self.source.marks, ends, strict=True):
            self.marks.append((len(self.events), phase, step))
            if phase == "forward":
                self._gather(_OUTSIDE)
            at_work = self._play(phase, start, end)
            if phase == "init":
                self._place()
            if phase == "forward" and self.sharding.flat:
                self._let_go(at_work)
            if phase == "backward":
                self._end_backward()

    def _play(self, phase: str, start: int, end: int) -> int:
        """The events of a phase; the last layer that was at work."""
        at_work = _OUTSIDE
        for event in self.source.events[start:end]:
            layer = self.source.layer[abs(event)]
            if event > 0 and layer >= 0 and layer != at_work and phase in ("forward", "backward"):
                self._turns(phase, at_work, layer)
                at_work = layer
            self._copy(event, phase)
        return at_work

    def _copy(self, event: int, phase: str) -> None:
        """One event of the source."""
        row = abs(event)
        if event < 0:
            if row in self.number:  # a whole gradient may be gone
                self.events.append(-self.number.pop(row))
            return
        category = self.source.strings[self.source.category[row]]
        if phase == "init" and category == "weights":
            self.weights.setdefault(self.source.layer[row], []).append(row)
            return
        if category == "gradients":
            self.whole.setdefault(self.source.layer[row], []).append(row)
            self.number[row] = self._make(row, category="communication")
            return
        self.number[row] = self._make(row)

    def _turns(self, phase: str, before: int, layer: int) -> None:
        """Another layer begins; FSDP2 gathers the next one before it lets this one go."""
        if not self.sharding.flat:
            self._gather(layer)
        if phase == "backward" and before > layer:
            self._reduce(before)
            self._keep_boundary()
        self._let_go(before)
        self._gather(layer)
        if phase == "backward" and not self.sharding.flat and layer > 0:
            self._gather(layer - 1)

    def _end_backward(self) -> None:
        for layer in sorted(self.whole, reverse=True):
            self._reduce(layer)
        self._free(self.waiting)
        for layer in list(self.gathered):
            self._let_go(layer, root=True)
        self._free(self.boundaries)

    def _units(self, rows: list[int]) -> list[list[int]]:
        """Rows that share a tensor: under FSDP1 a layer without its adapters, own units."""
        if not self.sharding.flat:
            return [[row] for row in rows]
        adapters = [row for row in rows if "lora" in self.source.strings[self.source.module[row]]]
        others = [row for row in rows if row not in adapters]
        adapter_units = [[row] for row in adapters]
        return [others, *adapter_units] if others else adapter_units

    def _place(self) -> None:
        """This rank's shares of all weights."""
        for rows in self.weights.values():
            for unit in self._units(rows):
                self._make(unit[0], self._shared(unit))

    def _gather(self, layer: int) -> None:
        if layer not in self.gathered:
            self.gathered[layer] = [
                self._make(
                    unit[0],
                    self._term(self._size(unit)),
                    stream=GATHERING,
                    category="communication",
                )
                for unit in self._units(self.weights.get(layer, []))
            ]

    def _let_go(self, layer: int, root: bool = False) -> None:
        if layer != _OUTSIDE or root:
            self._free(self.gathered.pop(layer, []))

    def _reduce(self, layer: int) -> None:
        """Shares of a layer's gradients are made; the whole ones go with the next."""
        self._free(self.waiting)
        for unit in self._units(self.whole.pop(layer, [])):
            self.waiting += [self.number.pop(row) for row in unit]
            self.number[unit[0]] = self._make(
                unit[0], self._shared(unit), stream=REDUCING, category="gradients"
            )

    def _keep_boundary(self) -> None:
        if self.sharding.keeps_boundaries:
            index = self._term(BOUNDARY)
            self.boundaries += [self._make(0, index, category="activations") for _ in range(2)]

    def _free(self, numbers: list[int]) -> None:
        self.events += [-number for number in numbers]
        numbers.clear()

    def _shared(self, unit: list[int]) -> int:
        return self._term(self.sharding.share(self._size(unit)))

    def _size(self, unit: list[int]) -> Size:
        sizes = [self.source.bytes[row] for row in unit]
        terms = [term for term in map(self.terms.__getitem__, sizes) if isinstance(term, Term)]
        return terms[0] if len(terms) == 1 else Sum(tuple(terms))

    def _term(self, size: Size) -> int:
        if size not in self._index:
            self._index[size] = len(self.terms)
            self.terms.append(size)
        return self._index[size]

    def _make(self, row: int, size: int | None = None, stream: int = 0, category: str = "") -> int:
        """A new storage like that row of the source; its number."""
        for name, column in self.columns.items():
            column.append(getattr(self.source, name)[row])
        number = len(self.columns["bytes"]) - 1
        if size is not None:
            self.columns["bytes"][number] = size
        self.columns["stream"][number] = stream or self.source.stream[row]
        if category:
            self.columns["category"][number] = self._string(category)
        self.events.append(number)
        return number

    def _string(self, text: str) -> int:
        if text not in self.strings:
            self.strings.append(text)
        return self.strings.index(text)
