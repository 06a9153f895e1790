"""GPUs on which an estimate fits, one line for each size of memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gputop.render.rows import Row, left, right, row_width, shorten
from gputop.render.vram import bounds, gib, short_gpu

if TYPE_CHECKING:
    from gputop_analysis.vram.estimate import Estimate

_FIRST = (
    "H100",
    "H200",
    "A100",
    "B200",
    "L40S",
    "L4",
    "RTX 4090",
    "RTX 3090",
    "RTX 5090",
    "V100",
    "T4",
    "A10",
    "MI300X",
)
"""GPUs that are named first among those of one size."""
LEAST_NAME = 6
"""Columns less than which say no name."""
LEAST_WITH_LARGER = 4
"""Rows from which on one says which larger ones there are."""
_WIDE = 60


@dataclass(frozen=True, slots=True)
class Size:
    """GPUs with as much memory; bytes."""

    memory_gb: int
    names: tuple[str, ...]
    memory: int
    fits: bool
    tight: bool
    """Whether it fits by less than the estimate may be off, or misses by less."""
    headroom: int
    """Bytes left on the GPU that has the least room."""
    some: tuple[str, ...] = ()
    """Those that it fits, where it fits some and not all."""
    by_cache: bool = False
    """Whether it fits where it does because the allocator gives its cache back."""


def sizes(estimate: Estimate) -> list[Size]:
    """The GPUs of the catalog that compute in its dtype by the size on their data sheets, the
    smallest memory first.
    """
    from gputop_analysis import catalog
    from gputop_analysis.vram.fits import computes

    groups: dict[int, list[tuple[str, int, bool, int]]] = {}
    for fit in estimate.fits:
        spec = catalog.gpu(fit.gpu)
        if computes(spec, estimate.setup.dtype) or fit.gpu == estimate.gpu:
            groups.setdefault(round(spec.memory_gb), []).append(
                (short_gpu(fit.gpu), fit.memory, fit.fits, fit.headroom)
            )
    low, high = bounds(estimate)
    sizes_found = []
    for memory_gb, members in sorted(groups.items()):
        memory = min(size for _, size, _, _ in members)
        names = tuple(sorted((name for name, _, _, _ in members), key=_place))
        able = {name for name, _, fits, _ in members if fits}
        fits, headroom = len(able) == len(members), min(member[3] for member in members)
        if fits:
            tight = memory < high
        else:
            tight = low < memory
        if fits:
            some = ()
        else:
            some = tuple(name for name in names if name in able)
        sizes_found.append(
            Size(
                memory_gb,
                names,
                memory=memory,
                fits=fits,
                tight=tight,
                headroom=headroom,
                some=some,
                by_cache=bool(able) and all(spare < 0 for _, _, fits, spare in members if fits),
            )
        )
    return sizes_found


def rows(sizes_shown: list[Size], width: int, limit: int = 99) -> list[Row]:
    """Mark, size, names and headroom; of more than ``limit`` those next to the border, and what
    else fits.
    """
    shown = nearest(sizes_shown, limit)
    larger = sizes_shown[sizes_shown.index(shown[-1]) + 1 :] if shown else []
    drawn = [_row(size, width) for size in shown]
    if larger and limit >= LEAST_WITH_LARGER:
        drawn[-1] = [("… ", "muted"), (_larger([shown[-1], *larger], width - 2), "muted")]
    return drawn


def _larger(others: list[Size], width: int) -> str:
    """Their sizes, or from which to which."""
    listed = ", ".join(str(size.memory_gb) for size in others)
    if len(text := f"and larger: {listed} GB") <= width:
        return text
    return shorten(f"and larger: {others[0].memory_gb} to {others[-1].memory_gb} GB", width)


def nearest(candidates: list[Size], limit: int) -> list[Size]:
    """The sizes around the smallest that fits: the far too small say little."""
    border = next((index for index, size in enumerate(candidates) if size.fits), len(candidates))
    first = max(0, min(border - limit // 2, len(candidates) - limit))
    return candidates[first : first + limit]


def _row(size: Size, width: int) -> Row:
    mark, style = "✖", "critical"
    if size.fits:
        mark, style = "✓", "good"
    if size.tight or size.some:
        mark, style = "≈", "medium"
    start: Row = [(mark + " ", style), (right(f"{size.memory_gb} GB", 6) + "  ", "text")]
    space = width - row_width(start)
    word = _room_on(size, space, width >= _WIDE)
    room = space - len(word) - 2
    if room < LEAST_NAME:
        return [*start, (right(shorten(word, space), space), style)]
    return [*start, (left(_first_names(size.names, room), room), "muted"), ("  " + word, style)]


def _room_on(size: Size, space: int, wide: bool) -> str:
    """What is left or lacking, or on which of them it fits."""
    unit = " GiB" if wide else ""
    cache = ", its cache given back" if wide and size.by_cache else ""
    if size.some:
        return "only " + _first_names(size.some, (space // 2 if wide else space) - 5) + cache
    if size.fits and size.by_cache:
        word = "if its cache is given back" if wide else "just"
    elif size.headroom >= 0:
        word = f"{gib(size.headroom)}{unit} left"
    else:
        word = f"{gib(-size.headroom)}{unit} short"
    return word + (", uncertain" if size.tight and wide else "")


def _first_names(names: tuple[str, ...], room: int) -> str:
    """As many as fit; dots for the others."""
    for count in range(len(names), 0, -1):
        text = ", ".join(names[:count]) + (" …" if count < len(names) else "")
        if len(text) <= room:
            return text
    return shorten(names[0], room)


def _place(name: str) -> tuple[int, str]:
    if name in _FIRST:
        return _FIRST.index(name), name
    return len(_FIRST), name
