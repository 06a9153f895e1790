"""A log of all layers from a trace of four: the middle layers' events repeated in every phase.

A trace is cut into sections, each the work of one repeated layer: in a forward and a backward pass the events from the
first allocation of a layer to the first of the next one; elsewhere (weights, gradient clipping, updates over lists of
tensors) the run of events on one layer's storages. Sections come in sweeps over the layers, upwards or downwards. The
first and the last layer may differ from the rest; the two between must be alike, and what is put between these two is
made of both: an event on a storage of the layer below is taken from the upper one, where that storage is a middle
layer's too, and one on a storage of the layer above from the lower one.

A storage is known by the layer in whose section it was made, and its number there; what a section frees of its
neighbours is found by the same number with the neighbour's index.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gputop_analysis.vram.eventlog import EventLog
from gputop_analysis.vram.timeline import spans

TRACED = 4
"""Layers that a trace must have: first, two alike, last."""
FIRST, LOWER, UPPER, LAST = range(TRACED)
UNLIKE = "the model's middle layers are unlike, so that a few cannot stand for all: trace all of them"
_IN_TURN = ("forward", "loss", "backward", "optimizer")
"""Phases in which one layer is at work after the other, and frees what its neighbour left; an update in lists of
tensors frees those of all layers at once, which ``_tags`` tells apart."""
_Ints = npt.NDArray[np.int64]


class Section(NamedTuple):
    """Events ``start`` to ``end`` of the trace, the work of the traced layer ``layer`` (-1: of none)."""

    start: int
    end: int
    layer: int


def deepen(log: EventLog, layers: int) -> EventLog:
    """The log of ``layers`` layers from one of four.

    Raises:
        ValueError: the trace's layers cannot be repeated (fewer than four, unlike ones, a free across layers).
    """
    traced = int(log.layer.max(initial=-1)) + 1
    if layers == traced:
        return log
    if traced != TRACED or layers < TRACED:
        raise ValueError(f"a trace of {traced} layers cannot stand for {layers}: it takes {TRACED}")
    sections = [section for span in spans(log, len(log.events)) for section in _sections(log, *span[:3])]
    owner = _owners(log, sections)
    log, sections = _postponed(log, sections, owner)
    twin = _twins(log, sections, owner)
    return _write(log, sections, owner, twin, layers)


def _sections(log: EventLog, start: int, end: int, phase: str) -> list[Section]:
    """The sections of one phase."""
    layer = _tags(log, start, end, phase in _IN_TURN)
    edges = np.flatnonzero(np.diff(layer)) + 1
    bounds = [0, *edges.tolist(), end - start]
    return [Section(start + a, start + b, int(layer[a])) for a, b in pairwise(bounds)]


def _tags(log: EventLog, start: int, end: int, in_turn: bool) -> _Ints:
    """The layer at work at each event.

    An event says so itself if its storage is of a layer; in a pass only allocations do, and runs of frees that reach
    beyond the neighbours of the layer at work. Between those the layer at work stays.
    """
    events = log.events[start:end]
    own = log.layer[np.abs(events)].astype(np.int64)
    says = own >= 0
    if in_turn:
        frees = events < 0
        at_work = _carried(own, says & ~frees)
        far = says & frees & ((np.abs(own - at_work) > 1) | (at_work < 0))
        says &= ~frees | _spread(far, frees)
    return _carried(own, says)


def _carried(own: _Ints, says: npt.NDArray[np.bool_]) -> _Ints:
    """The value at the last place that says, -1 before the first."""
    last = np.maximum.accumulate(np.where(says, np.arange(len(own)), -1))
    return np.where(last >= 0, own[np.maximum(last, 0)], -1)


def _spread(some: npt.NDArray[np.bool_], frees: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Whether any of the run of consecutive frees around each place is among ``some``."""
    run = np.cumsum(np.diff(frees.astype(np.int8), prepend=0) != 0)
    return np.bincount(run, weights=some)[run] > 0


def _owners(log: EventLog, sections: list[Section]) -> _Ints:
    """The traced layer in whose section each storage was made; -1: none."""
    owner = np.full(len(log.bytes), -1, dtype=np.int64)
    for start, end, layer in sections:
        made = log.events[start:end]
        owner[made[made > 0]] = layer
    return owner


def _postponed(log: EventLog, sections: list[Section], owner: _Ints) -> tuple[EventLog, list[Section]]:
    """With what no layer made and the lower middle layer alone frees, freed when the first layer's turn comes.

    Such is the mask of every other layer (Gemma 2), which goes in the backward of the last layer that uses it.
    """
    events, moved = log.events.copy(), list(sections)
    for at, (above, lower, first) in enumerate(zip(sections, sections[1:], sections[2:], strict=False), 1):
        if (above.layer, lower.layer, first.layer) != (UPPER, LOWER, FIRST):
            continue
        own = events[lower.start : lower.end]
        lone = _frees_of_none(own, owner)
        if lone.sum() != _frees_of_none(events[above.start : above.end], owner).sum():
            edge = lower.end - int(lone.sum())
            events[lower.start : lower.end] = np.concatenate([own[~lone], own[lone]])
            moved[at : at + 2] = lower._replace(end=edge), first._replace(start=edge)
    return replace(log, events=events), moved


def _frees_of_none(events: npt.NDArray[np.int32], owner: _Ints) -> npt.NDArray[np.bool_]:
    return (events < 0) & (owner[np.abs(events)] < 0)


def _twins(log: EventLog, sections: list[Section], owner: _Ints) -> _Ints:
    """For each storage of the lower middle layer its counterpart in the upper one; itself for all others."""
    made = log.events[log.events > 0].astype(np.int64)
    phase = np.searchsorted([at for at, _, _ in log.marks], np.flatnonzero(log.events > 0), side="right")
    order = np.argsort(phase, kind="stable")
    made, phase = made[order], phase[order]
    lower, upper = made[owner[made] == LOWER], made[owner[made] == UPPER]
    alike = len(lower) == len(upper) and np.array_equal(phase[owner[made] == LOWER], phase[owner[made] == UPPER])
    if not alike or not np.array_equal(log.bytes[lower], log.bytes[upper]):
        raise ValueError(UNLIKE)
    twin = np.arange(len(log.bytes))
    twin[lower] = upper
    return twin


def _write(log: EventLog, sections: list[Section], owner: _Ints, twin: _Ints, layers: int) -> EventLog:
    """The sections one after the other, with the copies, storages counted anew in the order of their allocation."""
    parts: list[_Ints] = []
    starts: dict[int, int] = {}
    length = 0
    cut = _Cut(log, owner, twin, layers)
    for before, section in zip((Section(0, 0, -1), *sections), sections, strict=False):
        starts[section.start] = length
        for part in cut.played(section, before):
            parts.append(part)
            length += len(part)
    signed = np.concatenate(parts)
    keys = np.abs(signed)
    made = keys[signed > 0]
    ids = np.zeros(len(log.bytes) * layers, dtype=np.int64)
    ids[made] = np.arange(1, len(made) + 1)
    if not _once(made) or not _once(keys[signed < 0]) or not ids[keys].all():
        raise ValueError("a layer frees what a far one made, so that a few cannot stand for all: trace all of them")
    source = np.concatenate(([0], made // layers))
    depth = np.concatenate(([-1], made % layers))
    return replace(
        log,
        bytes=log.bytes[source],
        stream=log.stream[source],
        category=log.category[source],
        operator=log.operator[source],
        module=log.module[source],
        layer=np.where(log.layer[source] < 0, -1, depth).astype(np.int32),
        events=(ids[keys] * np.sign(signed)).astype(np.int32),
        marks=tuple((starts.get(at, length), phase, step) for at, phase, step in log.marks),
        meta={**log.meta, "layers": layers},
    )


def _once(keys: _Ints) -> bool:
    return int(np.bincount(keys, minlength=1).max()) <= 1  # np.unique imports masked arrays, 30 ms


class _Cut(NamedTuple):
    """A trace, its storages' layers and counterparts, and how many layers are wanted.

    Storages are named by keys, counterpart x layers + layer; a key has the sign of its event.
    """

    log: EventLog
    owner: _Ints
    twin: _Ints
    layers: int

    def played(self, section: Section, before: Section) -> list[_Ints]:
        """The keys of a section, after those of the layers that are put between it and the one before."""
        own = self.keys(section, (0, LOWER, self.layers - 2, self.layers - 1)[max(section.layer, 0)])
        if {section.layer, before.layer} != {LOWER, UPPER} or self.layers == TRACED:
            return [own]
        upwards = section.layer == UPPER
        return [self.between(before, section) if upwards else self.between(section, before, downwards=True), own]

    def between(self, lower: Section, upper: Section, downwards: bool = False) -> _Ints:
        """The keys of the layers between the two middle ones, in their order."""
        low = self.log.events[lower.start : lower.end].astype(np.int64)
        high = self.log.events[upper.start : upper.end].astype(np.int64)
        if not np.array_equal(np.sign(low), np.sign(high)):
            raise ValueError(UNLIKE)
        from_low, from_high = self.owner[np.abs(low)], self.owner[np.abs(high)]
        take_low = (from_low == LOWER) | (from_low == UPPER)
        storages = np.where(take_low, np.abs(low), np.abs(high))
        made_by = np.where(take_low, from_low, from_high)
        offset = np.where(take_low, from_low - LOWER, from_high - UPPER)
        depths = np.arange(LOWER + 1, self.layers - 2)[:, None]
        depths = depths[::-1] if downwards else depths
        fixed = [made_by <= FIRST, made_by == LAST]
        depths = np.select(fixed, [np.zeros_like(depths), np.full_like(depths, self.layers - 1)], depths + offset)
        return ((self.twin[storages] * self.layers + depths) * np.sign(low)).ravel()

    def keys(self, section: Section, depth: int) -> _Ints:
        """The section's events as the layer ``depth``."""
        events = self.log.events[section.start : section.end].astype(np.int64)
        storages = np.abs(events)
        made_by = self.owner[storages]
        depths = np.select([made_by <= FIRST, made_by == LAST], [0, self.layers - 1], depth + made_by - section.layer)
        return (self.twin[storages] * self.layers + depths) * np.sign(events)
