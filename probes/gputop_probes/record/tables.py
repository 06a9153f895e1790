"""A record's fixed-width files as NumPy arrays: mapped, followed, without damaged rows."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gputop_probes.record import files
from gputop_probes.record.rows import sound

Table = npt.NDArray[Any]

WHOLE_AT_MOST = 131_072
"""Rows up to which all of a file is checked. Of a longer one, what analysis reads of it
(``blocks``) and its end; where that shows damage, its newest ``KEPT_AT_MOST`` rows.
"""
KEPT_AT_MOST = 524_288
THIN_BLOCKS, THIN_BLOCK_RECORDS = 64, 512
"""A longer file is read in so many evenly spread blocks of consecutive records."""


def blocks(count: int) -> Iterator[slice]:
    """Evenly spread blocks of a file of ``count`` rows, the first and the last among them."""
    for start in np.linspace(0, count - THIN_BLOCK_RECORDS, THIN_BLOCKS).astype(int).tolist():
        yield slice(start, start + THIN_BLOCK_RECORDS)


class GrowingTable:
    """One fixed-width file, mapped read-only; ``refresh`` maps what has been appended since."""

    def __init__(self, path: Path, dtype: np.dtype[Any], table: str = ""):
        self.path = path
        self.dtype = dtype
        self.table = table
        self.rows: Table = np.empty(0, dtype)
        self.damaged = 0
        """Rows that cannot be true and were left out."""
        self.unread = 0
        """Rows of a damaged long file that were not looked at."""
        self.problem = ""
        """Why the file cannot be read."""
        self._looked_at = 0
        self._places: npt.NDArray[np.int64] | None = None

    def refresh(self) -> bool:
        """Map the file anew if it grew by a whole record. Returns whether it did."""
        before = self._looked_at
        self.problem = files.look_into(self.path, self._follow) or self.problem
        return self._looked_at != before

    def index_of(self, written: int) -> int:
        """Where the row written as number ``written`` lies among ``rows``, or would lie."""
        if self._places is None:
            return written
        return int(np.searchsorted(self._places, written))

    def _follow(self, descriptor: int) -> None:
        count = os.fstat(descriptor).st_size // self.dtype.itemsize
        if count == self._looked_at:
            return
        if count:
            rows = _mapped(descriptor, self.dtype, count)
        else:
            rows = np.empty(0, self.dtype)
        clean = not self.damaged and count > self._looked_at
        before, self._looked_at = self._looked_at, count
        if clean and self._is_clean(rows, max(0, before - 1)):
            self.rows = rows
        else:
            self._leave_out_damage(rows)
        if count > WHOLE_AT_MOST:
            release_pages(rows)

    def _is_clean(self, whole: Table, since: int) -> bool:
        """Whether the rows from ``since`` on hold no damage, as far as they are looked at."""
        if not self.table:
            return True
        if len(whole) - since <= WHOLE_AT_MOST:
            return bool(sound(self.table, whole[since:]).all())
        parts = [*blocks(len(whole)), slice(len(whole) - WHOLE_AT_MOST // 4, len(whole))]
        return all(bool(sound(self.table, whole[part]).all()) for part in parts)

    def _leave_out_damage(self, whole: Table) -> None:
        self.unread = max(0, len(whole) - KEPT_AT_MOST)
        part = whole[self.unread :]
        places = np.flatnonzero(sound(self.table, part))
        self.damaged = len(part) - len(places)
        self._places = places + self.unread
        self.rows = part.take(places)


def release_pages(rows: Table) -> None:
    """Let go of the pages of a mapped file: the kernel maps far more around each read than was
    asked for.

    They are still in its cache, and come back when they are read again.
    """
    base: Any = rows
    while base is not None and not isinstance(base, mmap.mmap):
        base = getattr(base, "base", None)
    if base is not None and hasattr(mmap, "MADV_DONTNEED"):
        base.madvise(mmap.MADV_DONTNEED)


def _mapped(descriptor: int, dtype: np.dtype[Any], count: int) -> Table:
    mapped = mmap.mmap(descriptor, count * dtype.itemsize, prot=mmap.PROT_READ)
    return np.frombuffer(mapped, dtype, count)
