"""GPUs on which an estimate fits, one line for each size of memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gputop.render.rows import Row, left, right, row_width, shorten
from gputop.render.vram import bounds, gib

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
NAMES_AT_MOST = 4
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


def sizes(estimate: Estimate) -> list[Size]:
    """The GPUs of the catalog by the size on their data sheets, the smallest memory first."""
    from gputop_analysis import catalog

    groups: dict[int, list[tuple[str, int, bool, int]]] = {}
    for fit in estimate.fits:
        spec = catalog.gpu(fit.gpu)
        if spec.aliases:
            name = spec.aliases[0]
        else:
            name = fit.gpu.removeprefix("GeForce ")
        groups.setdefault(round(spec.memory_gb), []).append(
            (name, fit.memory, fit.fits, fit.headroom)
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
            )
        )
    return sizes_found


def rows(sizes_shown: list[Size], width: int, limit: int = 99) -> list[Row]:
    """Mark, size, names and headroom; above ``limit``, those next to the border."""
    shown = nearest(sizes_shown, limit)
    return [_row(size, width) for size in shown]


def nearest(candidates: list[Size], limit: int) -> list[Size]:
    """The sizes around the smallest that fits: the far too small or much too large say little."""
    border = next((index for index, size in enumerate(candidates) if size.fits), len(candidates))
    candidates = candidates[: border + max(limit // 2 + 1, 3)]
    if len(candidates) <= limit:
        return candidates
    first = max(0, min(border - limit // 2, len(candidates) - limit))
    return candidates[first : first + limit]


def _row(size: Size, width: int) -> Row:
    mark, style = "✖", "critical"
    if size.fits:
        mark, style = "✓", "good"
    unit = " GiB" if width >= _WIDE else ""
    if size.headroom >= 0:
        word = f"{gib(size.headroom)}{unit} left"
    else:
        word = f"{gib(-size.headroom)}{unit} short"
    if size.fits and size.headroom < 0:
        if width >= _WIDE:
            word = "only by giving its cache back"
        else:
            word = "just"
    if size.some:
        count = 1
        if width >= _WIDE:
            count = 2
        word = "only " + _first_names(size.some, count)
    if size.tight or size.some:
        mark, style = "≈", "medium"
    if size.tight and width >= _WIDE:
        word += ", uncertain"
    start: Row = [(mark + " ", style), (right(f"{size.memory_gb} GB", 6) + "  ", "text")]
    room = width - row_width(start) - len(word) - 2
    names = _first_names(size.names, NAMES_AT_MOST)
    return [*start, (left(shorten(names, room), room), "muted"), ("  " + word, style)]


def _first_names(names: tuple[str, ...], count: int) -> str:
    """The first ``count`` names; dots for the others."""
    text = ", ".join(names[:count])
    if len(names) > count:
        text += " …"
    return text


def _place(name: str) -> tuple[int, str]:
    if name in _FIRST:
        return _FIRST.index(name), name
    return len(_FIRST), name
