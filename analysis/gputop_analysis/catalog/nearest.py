"""Names that are written most alike, for messages."""

from __future__ import annotations


def most_alike(name: str, names: tuple[str, ...], count: int) -> tuple[str, ...]:
    """Those of ``names`` whose letters are most like those of ``name``, the nearest first."""
    from difflib import SequenceMatcher  # slow to import, and only a mistake needs it

    wanted = name.strip().lower().rpartition("/")[2]

    def unlike(other: str) -> float:
        return -SequenceMatcher(None, wanted, other.lower(), autojunk=False).ratio()

    return tuple(sorted(names, key=unlike)[:count])
