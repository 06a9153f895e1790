"""On which GPUs an estimate fits, one line for each size of memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gputop.render.bars import layered_bar
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
    """Of the GPU with the least."""
    some: tuple[str, ...] = ()
    """Those that it fits, where it fits some and not all."""


def sizes(estimate: Estimate) -> list[Size]:
    """The GPUs of the catalog by the size on their data sheets, the smallest memory first."""
    from gputop_analysis import catalog

    groups: dict[int, list[tuple[str, int, bool, int]]] = {}
    for fit in estimate.fits:
        spec = catalog.gpu(fit.gpu)
        name = spec.aliases[0] if spec.aliases else fit.gpu.removeprefix("GeForce ")
        groups.setdefault(round(spec.memory_gb), []).append((name, fit.memory, fit.fits, fit.headroom))
    low, high = bounds(estimate)
    found = []
    for memory_gb, members in sorted(groups.items()):
        memory = min(size for _, size, _, _ in members)
        names = tuple(sorted((name for name, _, _, _ in members), key=_place))
        able = {name for name, _, fits, _ in members if fits}
        fits, headroom = len(able) == len(members), min(one[3] for one in members)
        tight = memory < high if fits else low < memory
        some = () if fits else tuple(name for name in names if name in able)
        found.append(Size(memory_gb, names, memory, fits, tight, headroom, some))
    return found


def rows(found: list[Size], width: int, most: int = 99) -> list[Row]:
    """Mark, size, names and headroom; where there are more than ``most``, those next to the border."""
    shown = nearest(found, most)
    return [_row(size, width) for size in shown]


def nearest(found: list[Size], most: int) -> list[Size]:
    """The sizes around the smallest that fits: what is far too small or much too large says little."""
    border = next((index for index, size in enumerate(found) if size.fits), len(found))
    found = found[: border + max(most // 2 + 1, 3)]
    if len(found) <= most:
        return found
    first = max(0, min(border - most // 2, len(found) - most))
    return found[first : first + most]


def _row(size: Size, width: int) -> Row:
    mark, style = ("✓", "good") if size.fits else ("✖", "critical")
    word = f"{gib(size.headroom)} left" if size.headroom >= 0 else f"{gib(-size.headroom)} short"
    if size.fits and size.headroom < 0:
        word = "only by giving its cache back" if width >= _WIDE else "just"
    if size.some:
        named = size.some[: 2 if width >= _WIDE else 1]
        word = f"only {', '.join(named)}" + (" …" if len(size.some) > len(named) else "")
    if size.tight or size.some:
        mark, style = "≈", "medium"
    if size.tight and width >= _WIDE:
        word += ", uncertain"
    start: Row = [(mark + " ", style), (right(f"{size.memory_gb} GB", 6) + "  ", "text")]
    room = width - row_width(start) - len(word) - 2
    names = ", ".join(size.names[:NAMES_AT_MOST]) + (" …" if len(size.names) > NAMES_AT_MOST else "")
    return [*start, (left(shorten(names, room), room), "muted"), ("  " + word, style)]


def bar_of(estimate: Estimate, memory: int, width: int) -> Row:
    """The estimate on a line of the GPU's memory."""
    total = estimate.device_total
    return layered_bar([(float(total), "allocated" if total <= memory else "critical", "━")], 0, float(memory), width)


def _place(name: str) -> tuple[int, str]:
    return (_FIRST.index(name) if name in _FIRST else len(_FIRST), name)
