"""A log of all layers from a trace of four: the middle layers' events repeated in every phase.

A trace is cut into sections, each the work of one repeated layer: in a forward and a backward pass
the events from the first allocation of a layer to the first of the next one; elsewhere (weights,
gradient clipping, updates over lists of tensors) the run of events on one layer's storages.
Sections come in sweeps over the layers, upwards or downwards. The first and the last layer may
differ from the rest; the two between must be alike, and what is put between these two is made of
both: an event on a storage of the layer below is taken from the upper one, where that storage is a
middle layer's too, and one on a storage of the layer above from the lower one.

A storage is known by the layer in whose section it was made, and its number there; what a section
frees of its neighbours is found by the same number with the neighbour's index. What a layer gathers
ahead for the next one, and the one after that frees (packed weights under FSDP1), is found two
layers further on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain, groupby, pairwise, repeat
from typing import NamedTuple

from gputop_analysis.vram.eventlog import EventLog
from gputop_analysis.vram.timeline import spans

TRACED = 4
"""Layers that a trace must have: first, two alike, last."""
FIRST, LOWER, UPPER, LAST = range(TRACED)
UNLIKE = (
    "the model's middle layers are unlike, so that a few cannot stand for all: trace all of them"
)
_IN_TURN = ("forward", "loss", "backward", "optimizer")
"""Phases in which one layer is at work after the other, and frees what its neighbour left; an
update in lists of tensors frees those of all layers at once, which ``_tags`` tells apart.
"""
_PASSES = ("forward", "loss", "backward")
_COPIED = ("bytes", "stream", "category", "operator", "module")
"""Columns that a copy of a layer has from the one that was traced."""


class Section(NamedTuple):
    """Events ``start`` to ``end`` of the trace, work of the traced ``layer`` (-1: none)."""

    start: int
    end: int
    layer: int


_NONE = Section(0, 0, -1)


def deepen(log: EventLog, layers: int) -> EventLog:
    """The log of ``layers`` layers from one of four.

    Raises:
        ValueError: the trace's layers cannot be repeated (fewer than four, unlike ones, a free
            across layers).
    """
    traced = max(log.layer) + 1
    if layers == traced:
        return log
    if traced != TRACED or layers < TRACED:
        raise ValueError(f"a trace of {traced} layers cannot stand for {layers}: it takes {TRACED}")
    try:
        return _repeated(log, layers)
    except ValueError:
        return _repeated(_newest_first(log), layers)


def _newest_first(log: EventLog) -> EventLog:
    """With what passes free in one go freed as a backward pass meets the layers, which leaves the
    allocator the same.

    FSDP1 lets go of what its hooks hold of all layers in the order of its units, autocast in that
    of a hash table.
    """
    events = log.events.copy()
    for start, end, phase, _ in spans(log, len(log.events)):
        if phase in _PASSES:
            runs = groupby(events[start:end], lambda event: event < 0)
            events[start:end] = chain.from_iterable(
                sorted(run) if frees else run for frees, run in runs
            )
    return log.played(events)


def _repeated(log: EventLog, layers: int) -> EventLog:
    sections = [
        section for span in spans(log, len(log.events)) for section in _sections(log, *span[:3])
    ]
    owner = _owners(log, sections)
    log, sections = _postponed(log, sections, owner)
    twin = _twins(log, owner)
    return _Deep(log, owner, twin, _ahead(log, sections, owner), layers).write(sections)


def _sections(log: EventLog, start: int, end: int, phase: str) -> list[Section]:
    """The sections of one phase."""
    sections = []
    for layer, run in groupby(_tags(log, start, end, phase in _IN_TURN)):
        length = sum(1 for _ in run)
        sections.append(Section(start, start + length, layer))
        start += length
    return sections


def _tags(log: EventLog, start: int, end: int, in_turn: bool) -> list[int]:
    """The layer at work at each event, -1 before the first.

    An event says so itself if its storage is of a layer; in a pass only allocations do, and runs of
    frees of several layers that reach beyond the neighbours of the layer at work. Between those the
    layer at work stays.
    """
    tags: list[int] = []
    at_work = maker = -1
    for frees, run in groupby(log.events[start:end], lambda event: event < 0):
        layers_of_run = [log.layer[abs(event)] for event in run]
        far = any(layer >= 0 and (maker < 0 or abs(layer - maker) > 1) for layer in layers_of_run)
        several = maker < 0 or len({layer for layer in layers_of_run if layer >= 0}) > 1
        says = not (frees and in_turn) or (far and several)
        for layer in layers_of_run:
            at_work = layer if says and layer >= 0 else at_work
            maker = layer if not frees and layer >= 0 else maker
            tags.append(at_work)
    return tags


def _owners(log: EventLog, sections: list[Section]) -> list[int]:
    """The traced layer in whose section each storage was made; -1: none."""
    owner = [-1] * len(log.bytes)
    for start, end, layer in sections:
        for event in log.events[start:end]:
            if event > 0:
                owner[event] = layer
    return owner


def _postponed(
    log: EventLog, sections: list[Section], owner: list[int]
) -> tuple[EventLog, list[Section]]:
    """With what the lower middle layer alone frees and none or the first made, freed when the first
    layer's turn comes.

    Such is the mask of every other layer (Gemma 2) and the first layer's position bias that all
    later ones add (T5), which go in the backward of the last layer that uses them.
    """
    events, moved = log.events.copy(), list(sections)
    for at, (above, lower, first) in enumerate(
        zip(sections, sections[1:], sections[2:], strict=False), 1
    ):
        if (above.layer, lower.layer, first.layer) != (UPPER, LOWER, FIRST):
            continue
        own_events = events[lower.start : lower.end]
        lone = _lone(log, own_events, events[above.start : above.end], owner)
        if lone:
            edge = lower.end - len(lone)
            events[lower.start : lower.end] = [
                event for event in own_events if event not in lone
            ] + lone
            moved[at : at + 2] = lower._replace(end=edge), first._replace(start=edge)
    return log.played(events), moved


def _lone(log: EventLog, lower: list[int], upper: list[int], owner: list[int]) -> list[int]:
    """Those frees of the lower middle layer that the upper one has no counterpart of."""

    def frees(events: list[int], of: int) -> list[int]:
        return [event for event in events if event < 0 and owner[-event] == of]

    alike = Counter((log.bytes[-event], log.operator[-event]) for event in frees(upper, LOWER))
    unmatched = []
    for event in frees(lower, FIRST):
        storage_kind = log.bytes[-event], log.operator[-event]
        alike[storage_kind] -= 1
        unmatched += [event] if alike[storage_kind] < 0 else []
    shared = frees(lower, -1)
    return (shared if len(shared) != len(frees(upper, -1)) else []) + unmatched


def _ahead(log: EventLog, sections: list[Section], owner: list[int]) -> dict[int, int]:
    """For each storage of the last layer that the lower middle one frees on the way down, that of
    the upper middle one which the first layer frees likewise.
    """
    ahead: dict[int, int] = {}
    for lower, first in pairwise(sections):
        if (lower.layer, first.layer) != (LOWER, FIRST):
            continue
        of_last = _freed(log, lower, owner, LAST)
        of_upper = _freed(log, first, owner, UPPER)
        if [log.bytes[storage] for storage in of_last] == [
            log.bytes[storage] for storage in of_upper
        ]:
            ahead.update(zip(of_last, of_upper, strict=True))
    return ahead


def _freed(log: EventLog, section: Section, owner: list[int], of: int) -> list[int]:
    """Storages of a layer that a section frees, in that order."""
    events = log.events[section.start : section.end]
    return [-event for event in events if event < 0 and owner[-event] == of]


def _twins(log: EventLog, owner: list[int]) -> list[int]:
    """The upper middle layer's storage for each of the lower one's; itself for all others."""
    twins: dict[int, list[tuple[int, int]]] = {LOWER: [], UPPER: []}
    for phase, (start, end, _, _) in enumerate(spans(log, len(log.events))):
        for event in log.events[start:end]:
            if event > 0 and owner[event] in twins:
                twins[owner[event]].append((phase, event))
    twin = list(range(len(log.bytes)))
    if len(twins[LOWER]) != len(twins[UPPER]):
        raise ValueError(UNLIKE)
    for (phase, lower), (other_phase, upper) in zip(twins[LOWER], twins[UPPER], strict=True):
        if phase != other_phase or log.bytes[lower] != log.bytes[upper]:
            raise ValueError(UNLIKE)
        twin[lower] = upper
    return twin


class _Deep:
    """Writes the sections one after the other, with the copies; storages are counted anew as they
    are allocated.

    What a middle layer makes is allocated again by every other one, so many storages later, and so
    is freed: each event of the copies is a number that rises or falls evenly from layer to layer.
    """

    def __init__(
        self, log: EventLog, owner: list[int], twin: list[int], ahead: dict[int, int], layers: int
    ) -> None:
        self.log, self.owner, self.twin, self.ahead, self.layers = log, owner, twin, ahead, layers
        self.at = [0] * len(twin)
        """The number of each storage; of a middle layer's, what it would be at depth 0."""
        self.by = [0] * len(twin)
        """How much that rises from layer to layer."""
        self.events: list[int] = []
        self.columns: dict[str, list[int]] = {name: [getattr(log, name)[0]] for name in _COPIED}
        self.layer = [-1]

    def write(self, sections: list[Section]) -> EventLog:
        starts: dict[int, int] = {}
        around = zip((_NONE, *sections), sections, (*sections[1:], _NONE), strict=False)
        for before, section, after in around:
            starts[section.start] = len(self.events)
            if _pair(before, section):
                self.copies(before, section)
            self.own(section, _pair(section, after))
        freed = [event for event in self.events if event < 0]
        if len(set(freed)) < len(freed) or 0 in self.events:
            raise ValueError(
                "a layer frees what a far one made, so that a few cannot stand for "
                "all: trace all of them"
            )
        marks = tuple(
            (starts.get(at, len(self.events)), phase, step) for at, phase, step in self.log.marks
        )
        meta = {**self.log.meta, "layers": self.layers}
        return self.log.played(
            self.events, **self.columns, layer=self.layer, marks=marks, meta=meta
        )

    def own(self, section: Section, first_of_pair: bool) -> None:
        """A section that was traced, at its place."""
        depth = (0, LOWER, self.layers - 2, self.layers - 1)[max(section.layer, 0)]
        events = self.log.events[section.start : section.end]
        allocated = [self.twin[event] for event in events if event > 0]
        count, rise = len(self.layer), len(allocated) if section.layer == LOWER else -len(allocated)
        for position, storage in enumerate(allocated, count):
            if section.layer not in (LOWER, UPPER):
                self.at[storage] = position
            elif first_of_pair and not self.by[storage]:
                self.at[storage], self.by[storage] = position - depth * rise, rise
            elif position != self.at[storage] + depth * self.by[storage]:
                raise ValueError(UNLIKE)
        self.make(allocated, [depth])
        for event in events:
            value, rises = self.line(event, section.layer)
            self.events.append(value + depth * rises)

    def copies(self, before: Section, section: Section) -> None:
        """The layers between the two middle ones, made of both."""
        if section.layer == UPPER:
            lower, upper = (before, section)
        else:
            lower, upper = (section, before)
        low = self.log.events[lower.start : lower.end]
        high = self.log.events[upper.start : upper.end]
        if [event < 0 for event in low] != [event < 0 for event in high]:
            raise ValueError(UNLIKE)
        depths = range(LOWER + 1, self.layers - 2)[:: 1 if section.layer == UPPER else -1]
        self.make([self.twin[event] for event in low if event > 0], depths)
        events = []
        for lower_event, upper_event in zip(low, high, strict=True):
            made_by, is_ahead = self.owner[abs(lower_event)], -lower_event in self.ahead
            if made_by in (LOWER, UPPER) or is_ahead:
                value, rises = self.line(lower_event, LOWER)
            else:
                value, rises = self.line(upper_event, UPPER)
            start, step = value + depths[0] * rises, depths.step * rises
            if step:
                places = range(start, start + step * len(depths), step)
            else:
                places = repeat(start, len(depths))
            if is_ahead:  # the highest copy frees what the last layer itself made
                places = [-self.at[-lower_event], *list(places)[1:]]
            events.append(places)
        self.events += chain.from_iterable(zip(*events, strict=True))

    def make(self, made: list[int], depths: Sequence[int]) -> None:
        """The columns of what one section allocates, at each of these depths."""
        for name, column in self.columns.items():
            column += list(map(getattr(self.log, name).__getitem__, made)) * len(depths)
        of_layer = [self.log.layer[storage] >= 0 for storage in made]
        for depth in depths:
            self.layer += [depth if is_layer else -1 for is_layer in of_layer]

    def line(self, event: int, at_work: int) -> tuple[int, int]:
        """A layer's event: what it would be at depth 0, and how much it rises with depth."""
        storage, sign = abs(event), 1 if event > 0 else -1
        made_by, twin = self.owner[storage], self.twin[storage]
        offset = made_by - at_work if made_by in (LOWER, UPPER) else 0
        if at_work == LOWER and -event in self.ahead and self.layers > TRACED:
            offset, twin = LAST - LOWER, self.ahead[storage]
        return sign * (self.at[twin] + offset * self.by[twin]), sign * self.by[twin]


def _pair(before: Section, section: Section) -> bool:
    return {before.layer, section.layer} == {LOWER, UPPER}
