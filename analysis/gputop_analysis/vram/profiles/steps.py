"""From the events of one pass over a micro-batch to those of training steps with an optimizer.

A profile is traced with plain SGD, whose update allocates nothing, and one micro-batch. Put
together here are the weights, a step whose update makes the states of the optimizer, and a step as
all later ones are. With accumulation the last step has a second micro-batch, whose gradients are
added to the first one's and freed at once.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from gputop_analysis.vram.eventlog import EventLog
from gputop_analysis.vram.profiles.optimizers import SAME, UPDATES, size, states, temporaries

_EMBEDDINGS = ("embed", "wte", "wpe", "shared")
"""What modules that hold an embedding have in their names."""
_HEADS = ("lm_head", "decoder")
"""What the heads over a vocabulary are called."""
STEPS = 2
_AFTER_PASS = ("clip", "optimizer", "zero_grad")
_COLUMNS = ("bytes", "stream", "category", "operator", "module", "layer")


class Course(NamedTuple):
    """The log of training steps without sizes."""

    log: EventLog
    """``bytes`` is what the storage, or the parameter it was made for, has in the profile."""
    kind: list[int]
    """Of each storage, an index of ``made``."""
    made: list[tuple[int, str]]
    """By kind: what ``bytes`` says, and its size for a parameter of that size."""

    def sized(self, sizes: list[int], width: int) -> EventLog:
        """With the sizes of the profile's terms; ``width``: bytes of a trained value."""
        storage_sizes = [size(how, sizes[term], width) for term, how in self.made]
        column = list(map(storage_sizes.__getitem__, self.kind))
        column[0] = 0
        return replace(self.log, bytes=column)


class StepCourse(NamedTuple):
    """What decides the course of the steps besides the profile."""

    optimizer: str
    """A key of ``UPDATES``."""
    width: int
    """Bytes of a value of the trained parameters."""
    accumulate: bool = False
    """More than one micro-batch in a step."""
    ddp: bool = False
    """Gradients are copied into the buckets of DistributedDataParallel (``reducer.cpp``)."""
    tied: bool = False
    """The head's weights are those of the embedding, and called by the head's name."""


def course(log: EventLog, training: StepCourse) -> Course:
    """Two steps of a profile with all layers: the second one finds the states and what the first
    left in the cache.

    ``log`` holds the weights, then one step of one micro-batch without memory of an optimizer.
    """
    update, gradients = UPDATES[training.optimizer], _gradients(log)
    first, after, at_update = (
        _starts(log, phases) for phases in (None, _AFTER_PASS, ("optimizer",))
    )
    embeddings = _embeddings(log, gradients, training.tied)
    wanted = [
        (row, state_kind)
        for row, embedding in zip(gradients, embeddings, strict=True)
        for state_kind in states(update, embedding)
    ]
    storages = _Made(log, training.optimizer)
    storages.play(0, first, 0)
    storages.make([(row, SAME) for row in gradients if training.ddp], "communication")
    for step in range(STEPS):
        storages.play(first, after, step)
        storages.there = storages.there or _for_good(log, first)
        if training.accumulate and step == STEPS - 1:
            storages.play_again(first, after, step, gradients)
        storages.play(after, at_update, step)
        storages.mark("optimizer", step)
        storages.make(wanted if step == 0 else [], "optimizer")
        for _ in range(update.together):
            storages.make_and_free([(row, SAME) for row in gradients])
        for row in gradients if update.each else ():
            storages.make_and_free(
                [(row, state_kind) for state_kind in temporaries(update, training.width)]
            )
        storages.play(at_update, len(log.events), step)
    return storages.course()


def _starts(log: EventLog, phases: tuple[str, ...] | None) -> int:
    """Where the first of these phases begins; None: the first after the weights."""
    for at, phase, _ in log.marks:
        is_wanted = phase != "init" if phases is None else phase in phases
        if is_wanted:
            return at
    return len(log.events)


def _for_good(log: EventLog, first: int) -> list[int]:
    """Where storages for good are made, upwards; ``first``: where all weights are there."""
    events = set(log.events[first:])  # a layer's storages come and go
    rows_kept = [
        row
        for row, layer in enumerate(log.layer)
        if layer < 0 and row in events and -row not in events
    ]
    return sorted(log.events.index(row, first) for row in rows_kept)


def _gradients(log: EventLog) -> list[int]:
    """Storages of the gradients, in the parameters' order: a backward makes the last first."""
    if "gradients" not in log.strings:
        return []
    wanted = log.strings.index("gradients")
    return [row for row in range(len(log.category) - 1, 0, -1) if log.category[row] == wanted]


def _embeddings(log: EventLog, storages: list[int], tied: bool) -> list[bool]:
    wanted = (*_EMBEDDINGS, *(_HEADS if tied else ()))
    names = [log.strings[log.module[storage]].rpartition(".")[2] for storage in storages]
    return [any(part in name for part in wanted) for name in names]


class _Made:
    """A log made of pieces of another one, its storages numbered as they are allocated."""

    def __init__(self, source: EventLog, optimizer: str) -> None:
        self.source = source
        self.strings = [*source.strings, "optimizer", "temporaries", "communication", optimizer]
        self.columns = {name: getattr(source, name)[:1] for name in _COLUMNS}
        self.how: dict[str, list[int]] = {}
        """Storages that the optimizer made, other than as large as the gradient, by size."""
        self.events: list[int] = []
        self.marks: list[tuple[int, str, int]] = []
        self.number = [0] * len(source.bytes)
        """The present number of each of the source's storages."""
        self.there: list[int] = []
        """Where the source makes what stays since an earlier pass, as cuBLAS's workspaces."""

    def play(self, start: int, end: int, step: int) -> None:
        """Events ``start`` to ``end`` of the source, on new storages, with its marks."""
        length, count, number = len(self.events), len(self.columns["bytes"]), self.number
        there = [at for at in self.there if start <= at < end]
        for at, phase, _ in self.source.marks:
            if start <= at < end and phase != "optimizer":
                left_out = sum(position < at for position in there)
                self.marks.append((length + at - start - left_out, phase, step))
        events = self.source.events[start:end]
        for at in reversed(there):
            del events[at - start]
        last = max(events, default=0)
        if last > 0:
            first = next(event for event in events if event > 0)
            number[first : last + 1] = range(count, count + last + 1 - first)
            for name, column in self.columns.items():
                column += getattr(self.source, name)[first : last + 1]
        self.events += [number[event] if event > 0 else -number[-event] for event in events]

    def play_again(self, start: int, end: int, step: int, gradients: list[int]) -> None:
        """The same events again, on new storages; gradients are freed as soon as made."""
        gradients_held, at_start = [self.number[row] for row in gradients], len(self.events)
        self.play(start, end, step)
        added = {self.number[row] for row in gradients}
        repeated = self.events[at_start:]
        self.events[at_start:] = chain.from_iterable(
            (event, -event) if event in added else (event,) for event in repeated
        )
        for row, number in zip(gradients, gradients_held, strict=True):
            self.number[row] = number

    def mark(self, phase: str, step: int) -> None:
        self.marks.append((len(self.events), phase, step))

    def make(self, wanted: list[tuple[int, str]], category: str) -> list[int]:
        """New storages for (the gradient of a parameter, how large); returns their numbers."""
        count = len(self.columns["bytes"])
        numbers = list(range(count, count + len(wanted)))
        rows = [row for row, _ in wanted]
        columns = {"category": self.strings.index(category), "operator": len(self.strings) - 1}
        for name, column in self.columns.items():
            source = getattr(self.source, name)
            if name in columns:
                column += [columns[name]] * len(wanted)
            else:
                column += map(source.__getitem__, rows)
        for number, (_, row_kind) in zip(numbers, wanted, strict=True):
            if row_kind != SAME:
                self.how.setdefault(row_kind, []).append(number)
        self.events += numbers
        return numbers

    def make_and_free(self, wanted: list[tuple[int, str]]) -> None:
        """Temporaries that live together."""
        self.events += [-number for number in self.make(wanted, "temporaries")]

    def course(self) -> Course:
        log = self.source.played(
            self.events, **self.columns, marks=tuple(self.marks), strings=tuple(self.strings)
        )
        return Course(log, *self.kinds())

    def kinds(self) -> tuple[list[int], list[tuple[int, str]]]:
        """``Course.kind`` and ``Course.made``; each kind is one number until all are known."""
        codes = self.columns["bytes"].copy()
        terms, hows = max(codes) + 1, [SAME, *self.how]
        for index, how in enumerate(hows[1:], 1):
            for storage in self.how[how]:
                codes[storage] += index * terms
        number = {code: row_kind for row_kind, code in enumerate(dict.fromkeys(codes))}
        rows_made = [(code % terms, hows[code // terms]) for code in number]
        return list(map(number.__getitem__, codes)), rows_made
