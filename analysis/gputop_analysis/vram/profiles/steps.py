"""From the events of one pass over a micro-batch to those of training steps with an optimizer.

A profile is traced with plain SGD, whose update allocates nothing, and one micro-batch. Put together here are the
weights, a step whose update makes the states of the optimizer, and a step as all later ones are. With accumulation the
last step has a second micro-batch, whose gradients are added to the first one's and freed at once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gputop_analysis.vram.eventlog import EventLog
from gputop_analysis.vram.profiles.optimizers import SAME, UPDATES, size, states, temporaries

Ints = npt.NDArray[np.int64]
_EMBEDDINGS = ("embed", "wte", "wpe", "shared")
"""What modules that hold an embedding have in their names."""
_AFTER_PASS = ("clip", "optimizer", "zero_grad")


class Course(NamedTuple):
    """The log of training steps without sizes."""

    log: EventLog
    """``bytes`` is what the storage, or the parameter that it was made for, has there in the profile."""
    kinds: dict[str, Ints]
    """Storages that the optimizer makes, by how large they are."""

    def sized(self, sizes: Ints, width: int) -> EventLog:
        """With the sizes of the profile's terms put in; ``width``: bytes of a value of the trained parameters."""
        found = sizes[self.log.bytes]
        found[0] = 0
        for kind, storages in self.kinds.items():
            found[storages] = size(kind, found[storages], width)
        return replace(self.log, bytes=found)


class Training(NamedTuple):
    """What decides the course of the steps besides the profile."""

    optimizer: str
    """A key of ``UPDATES``."""
    width: int
    """Bytes of a value of the trained parameters."""
    accumulate: bool = False
    """More than one micro-batch in a step."""
    adapters: bool = False
    """What is trained is small: states that are there from the beginning make no difference, and one step will do."""
    ddp: bool = False
    """Gradients are copied into the buckets of DistributedDataParallel (``reducer.cpp``), which stay."""


def course(log: EventLog, training: Training) -> Course:
    """The steps of a profile with all layers: two where the first update makes states that matter, else one.

    ``log`` holds the weights, then one step of one micro-batch without memory of an optimizer.
    """
    update, gradients = UPDATES[training.optimizer], _gradients(log)
    first, after, at_update = (_starts(log, phases) for phases in (None, _AFTER_PASS, ("optimizer",)))
    wanted = [
        (int(row), kind)
        for row, embedding in zip(gradients, _embeddings(log, gradients), strict=True)
        for kind in states(update, embedding)
    ]
    steps = 2 if wanted and not training.adapters else 1
    made = _Made(log, training.optimizer)
    made.play(0, first, 0)
    made.make([(row, SAME) for row in gradients if training.ddp], "communication")
    made.make(wanted if steps == 1 else [], "optimizer")
    for step in range(steps):
        made.forget(log.events[:first])
        made.play(first, after, step)
        if training.accumulate and step == steps - 1:
            made.play_again(first, after, step, gradients)
        made.play(after, at_update, step)
        made.mark("optimizer", step)
        made.make(wanted if step < steps - 1 else [], "optimizer")
        for _ in range(update.together):
            made.make_and_free([(row, SAME) for row in gradients])
        for row in gradients if update.each else ():
            made.make_and_free([(row, kind) for kind in temporaries(update, training.width)])
        made.play(at_update, len(log.events), step)
    return made.course()


def _starts(log: EventLog, phases: tuple[str, ...] | None) -> int:
    """Where the first of these phases begins; None: the first after the weights."""
    found = (at for at, phase, _ in log.marks if (phase != "init" if phases is None else phase in phases))
    return next(found, len(log.events))


def _gradients(log: EventLog) -> Ints:
    """Storages of the gradients, in the order of the parameters: a backward pass makes the last one first."""
    if "gradients" not in log.strings:
        return np.zeros(0, dtype=np.int64)
    return np.flatnonzero(log.category == log.strings.index("gradients"))[::-1].astype(np.int64)


def _embeddings(log: EventLog, storages: Ints) -> list[bool]:
    names = [log.strings[index].rpartition(".")[2] for index in log.module[storages]]
    return [any(part in name for part in _EMBEDDINGS) for name in names]


class _Made:
    """A log that is put together from pieces of another one."""

    def __init__(self, source: EventLog, optimizer: str) -> None:
        self.source = source
        self.strings = [*source.strings, "optimizer", "temporaries", "communication", optimizer]
        self.rows: list[Ints] = [np.zeros(1, dtype=np.int64)]
        self.own: list[tuple[Ints, list[str], str]] = []
        """What the optimizer made: the storages, the kind of each, their category."""
        self.events: list[Ints] = []
        self.marks: list[tuple[int, str, int]] = []
        self.count = 0
        self.length = 0
        self.number = np.zeros(len(source.bytes), dtype=np.int64)
        """The present number of each of the source's storages."""

    def forget(self, kept: npt.NDArray[np.int32]) -> None:
        """Before the same events are played again: what is not among ``kept`` is made anew."""
        number = np.zeros_like(self.number)
        kept = kept[kept > 0]
        number[kept] = self.number[kept]
        self.number = number

    def play(self, start: int, end: int, step: int) -> None:
        """Events ``start`` to ``end`` of the source, with its marks."""
        self._events(self._renumbered(start, end, step))

    def play_again(self, start: int, end: int, step: int, gradients: Ints) -> None:
        """The same events once more, on new storages; gradients are freed as soon as they are made."""
        held = self.number.copy()
        renumbered = self._renumbered(start, end, step)
        at = np.flatnonzero(np.isin(self.source.events[start:end], gradients)) + 1
        self._events(np.insert(renumbered, at, -renumbered[at - 1]))
        self.number[gradients] = held[gradients]

    def mark(self, phase: str, step: int) -> None:
        self.marks.append((self.length, phase, step))

    def make(self, wanted: list[tuple[int, str]], category: str) -> Ints:
        """New storages for (the gradient of a parameter, how large); returns their numbers."""
        numbers = self._storages(np.array([row for row, _ in wanted], dtype=np.int64))
        self.own.append((numbers, [kind for _, kind in wanted], category))
        self._events(numbers)
        return numbers

    def make_and_free(self, wanted: list[tuple[int, str]]) -> None:
        """Temporaries that live together."""
        self._events(-self.make(wanted, "temporaries"))

    def course(self) -> Course:
        rows, source = np.concatenate(self.rows), self.source
        category, operator = source.category[rows], source.operator[rows]
        kinds: dict[str, list[Ints]] = {}
        for numbers, names, made in self.own:
            category[numbers] = self.strings.index(made)
            operator[numbers] = len(self.strings) - 1
            for kind in set(names):
                kinds.setdefault(kind, []).append(numbers[[name == kind for name in names]])
        log = replace(
            source,
            bytes=source.bytes[rows],
            stream=source.stream[rows],
            category=category,
            operator=operator,
            module=source.module[rows],
            layer=source.layer[rows],
            events=np.concatenate(self.events).astype(np.int32),
            marks=tuple(self.marks),
            strings=tuple(self.strings),
        )
        return Course(log, {kind: np.concatenate(numbers) for kind, numbers in kinds.items()})

    def _renumbered(self, start: int, end: int, step: int) -> Ints:
        inside = ((at, phase) for at, phase, _ in self.source.marks if start <= at < end and phase != "optimizer")
        self.marks += [(self.length + at - start, phase, step) for at, phase in inside]
        events = self.source.events[start:end].astype(np.int64)
        new = events[events > 0]
        self.number[new] = self._storages(new)
        return self.number[np.abs(events)] * np.sign(events)

    def _storages(self, rows: Ints) -> Ints:
        self.rows.append(rows)
        self.count += len(rows)
        return np.arange(self.count - len(rows) + 1, self.count + 1)

    def _events(self, events: Ints) -> None:
        self.events.append(events)
        self.length += len(events)
