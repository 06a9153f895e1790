"""Follows a record's event files: JSON lines, each checked once by the schema."""

from __future__ import annotations

import errno
import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gputop_probes.record import files, schema
from gputop_probes.record.fields import MAX_NAMED, Tally

Event = dict[str, Any]

BLOCK_BYTES = 1 << 20
READ_BYTES = 512 << 20
"""Of one file; what lies beyond is counted as not read."""
KEPT_OF_A_TYPE = 50_000
"""Events of a type that are kept; later ones replace: every other, then every fourth ...."""
KEPT_BYTES = 64 << 20
"""Text of the events of one file that are kept; beyond it only what is rare."""
RARE = 100
_KIND = re.compile(rb'"type": ?"(\w{1,40})"')


class GrowingLines:
    """A JSON-lines file, read as it grows; a torn last line waits, a broken one is skipped."""

    def __init__(self, path: Path):
        self.path = path
        self.items: list[Event] = []
        self.damaged = 0
        """Lines that are no event, and fields of a wrong type."""
        self.wrong_fields: list[str] = []
        """The first of those fields, as ``stacks.total``."""
        self.left_out = 0
        """Events of a type of which there are too many to keep."""
        self.unread_bytes = 0
        self.problem = ""
        """Why the file cannot be read."""
        self._positions: dict[str, list[int]] = {}
        self._indexed = 0
        self._offset = 0
        self._kept: Counter[str] = Counter()
        self._kept_bytes = 0

    def refresh(self) -> bool:
        """Parse lines completed since the last call. Returns whether there were any."""
        before = len(self.items)
        self.problem = files.look_into(self.path, self._read) or self.problem
        return len(self.items) > before

    def of(self, types: tuple[str, ...]) -> Iterator[Event]:
        """The items of these types in the order written, without looking at the others."""
        self._index()
        for position in sorted(p for name in set(types) for p in self._positions.get(name, ())):
            yield self.items[position]

    def _index(self) -> None:
        if self._indexed > len(self.items):  # somebody replaced the list by a shorter one
            self._positions, self._indexed = {}, 0
        for position in range(self._indexed, len(self.items)):
            self._positions.setdefault(str(self.items[position]["type"]), []).append(position)
        self._indexed = len(self.items)

    def _read(self, descriptor: int) -> None:
        """Take in whole lines, a block at a time; holes are passed over."""
        if os.fstat(descriptor).st_size <= self._offset:
            return
        remainder = b""
        while self._offset < READ_BYTES:
            if not remainder:
                at = _after_hole(descriptor, self._offset + len(remainder))
            else:
                at = self._offset + len(remainder)
            if at is None:
                return
            self._offset = at - len(remainder)
            data = os.pread(descriptor, BLOCK_BYTES, at)
            if not data:
                return
            remainder += data
            end = remainder.rfind(b"\n") + 1
            if not end and len(remainder) > files.LINE_BYTES:
                self.damaged += 1
                self._offset += len(remainder)
                remainder = b""
                continue
            for line in remainder[:end].splitlines():
                self._take(line)
            self._offset += end
            remainder = remainder[end:]
        self.unread_bytes = max(0, os.fstat(descriptor).st_size - self._offset)

    def _take(self, line: bytes) -> None:
        match = _KIND.search(line)
        name = match.group(1).decode() if match else ""
        if not self._has_room(name if name in schema.KNOWN else "", len(line)):
            self.left_out += 1
            return
        try:
            item = files.parse_json(line)
        except ValueError:
            self.damaged += bool(line.strip(b"\0 "))
            return
        tally = Tally()
        event = schema.event(item, tally) if isinstance(item, dict) else None
        self.damaged += tally.dropped or event is None
        self._name_wrong_fields(name, tally)
        if event is not None:
            self.items.append(event)
            self._kept_bytes += len(line)

    def _name_wrong_fields(self, kind: str, tally: Tally) -> None:
        for field in tally.fields:
            named = f"{kind}.{field}"
            if len(self.wrong_fields) < MAX_NAMED and named not in self.wrong_fields:
                self.wrong_fields.append(named)

    def _has_room(self, kind: str, size: int) -> bool:
        """Count an event of that type, and say whether it stays: ever fewer of a frequent type."""
        count = self._kept[kind] = self._kept[kind] + 1
        if self._kept_bytes + size > KEPT_BYTES:
            return count <= RARE
        every = 1 << (count // KEPT_OF_A_TYPE).bit_length()
        return count <= KEPT_OF_A_TYPE or count % every == 0


def _after_hole(descriptor: int, offset: int) -> int | None:
    """Where data goes on at or after ``offset``; None for nowhere."""
    try:
        return os.lseek(descriptor, offset, os.SEEK_DATA)
    except OSError as error:
        return None if error.errno == errno.ENXIO else offset
