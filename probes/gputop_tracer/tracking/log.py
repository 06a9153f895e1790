"""A trace's event log, in the replay's format: storages, signed events, marks, strings."""

from __future__ import annotations

import gzip
import json
from typing import Any, Dict, List

FORMAT = 1


class LogWriter:
    """Collects storages and events; storage ``i`` is allocated by event ``i``, freed by ``-i``."""

    def __init__(self) -> None:
        self.storages: List[List[int]] = []
        self.events: List[int] = []
        self.marks: List[List[Any]] = []
        self.strings: List[str] = []
        self._index: Dict[str, int] = {}

    def string(self, text: str) -> int:
        """The index of a string, added when it is new."""
        index = self._index.get(text)
        if index is None:
            index = self._index[text] = len(self.strings)
            self.strings.append(text)
        return index

    def allocate(
        self, size: int, stream: int, *, category: str, operator: str, module: str, layer: int
    ) -> int:
        """A new storage of ``size`` bytes; returns its id."""
        string = self.string
        self.storages.append(
            [size, stream, string(category), string(operator), string(module), layer]
        )
        self.events.append(len(self.storages))
        return len(self.storages)

    def free(self, storage: int) -> None:
        self.events.append(-storage)

    def retag(self, storage: int, category: str) -> None:
        """What it is held for became known later, as with a gradient."""
        self.storages[storage - 1][2] = self.string(category)

    def move(self, storage: int, module: str, layer: int) -> None:
        """It belongs to another module than the one that made it."""
        self.storages[storage - 1][4:] = [self.string(module), layer]

    def category(self, storage: int) -> str:
        return self.strings[self.storages[storage - 1][2]]

    def layer(self, storage: int) -> int:
        return self.storages[storage - 1][5]

    def module(self, storage: int) -> str:
        return self.strings[self.storages[storage - 1][4]]

    def mark(self, phase: str, step: int) -> None:
        """From the next event on, the step is in ``phase``."""
        self.marks.append([len(self.events), phase, step])

    def document(self, meta: Dict[str, Any]) -> Dict[str, Any]:
        return {
            "format": FORMAT,
            "meta": meta,
            "strings": self.strings,
            "storages": self.storages,
            "events": self.events,
            "marks": self.marks,
        }

    def save(self, path: str, meta: Dict[str, Any]) -> None:
        """Write the gzipped JSON."""
        text = json.dumps(self.document(meta), separators=(",", ":"))
        with gzip.open(path, "wt", encoding="utf-8", compresslevel=3) as lines:
            lines.write(text)
