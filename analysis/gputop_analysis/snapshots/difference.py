"""What two snapshots' peaks differ by, line by line."""

from __future__ import annotations

from typing import NamedTuple

from gputop_analysis.snapshots.analyse import Holder, Memory


class MemoryChange(NamedTuple):
    """One line at two peaks; bytes and blocks, the second less the first."""

    site: str
    category: str
    bytes: int
    blocks: int


def changes(before: Memory, after: Memory) -> tuple[MemoryChange, ...]:
    """The lines that hold more or less, the largest change first."""
    first, second = _by_line(before.holders), _by_line(after.holders)
    changed = []
    for key in first.keys() | second.keys():
        nothing = Holder(*key, bytes=0, blocks=0)
        old, new = first.get(key, nothing), second.get(key, nothing)
        if old != new:
            changed.append(MemoryChange(*key, new.bytes - old.bytes, new.blocks - old.blocks))
    return tuple(sorted(changed, key=lambda change: (-abs(change.bytes), change.site)))


def _by_line(holders: tuple[Holder, ...]) -> dict[tuple[str, str], Holder]:
    return {(holder.site, holder.category): holder for holder in holders}
