"""The catalog screen's rows: the table of GPUs, and the facts of some side by side."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from gputop.feed.catalog import dollars, facts
from gputop.render.rows import Row, clip, left, right, row_width, shorten, wrap
from gputop_analysis.catalog.listing import TERA, Listed
from gputop_analysis.text import MISSING

MARKS = "ABCD"
WIDTHS = {"GiB": 7, "GB/s": 7, "TFLOP/s": 9, "fp8": 7, "W": 7, "$/h": 7, "TF/$": 6, "year": 6}
SORTED_BY = {
    "vram": "GiB",
    "tflops": "TFLOP/s",
    "bandwidth": "GB/s",
    "price": "$/h",
    "price-performance": "TF/$",
    "year": "year",
}
"""The column that an order follows."""
_FIRST_TO_GO = ("year", "W", "fp8", "TF/$", "GB/s", "TFLOP/s")
NAME = 24
"""Columns that a GPU's name should have, its mark included."""
WIDEST = 94
"""No wider than the longest name needs: the eye has to get from there to the figures."""
LABEL = 14


def columns(width: int) -> list[str]:
    """The columns that there is room for beside a name."""
    shown = list(WIDTHS)
    for name in _FIRST_TO_GO:
        if width - sum(WIDTHS[column] for column in shown) < NAME:
            shown.remove(name)
    return shown


def heading(width: int, shown: Sequence[str], sort: str) -> Row:
    """Head of the columns; the one that is sorted by stands out."""
    by = SORTED_BY.get(sort, "")
    cells: Row = []
    for name in shown:
        style = "muted"
        if name == by:
            style = "bold accent"
        cells.append((right(name, WIDTHS[name]), style))
    return [(left("  GPU", max(width - row_width(cells), 4)), "muted"), *cells]


def table(
    rows: Sequence[Listed],
    width: int,
    height: int,
    first: int,
    cursor: int | None,
    *,
    marked: Sequence[str] = (),
    sort: str = "",
) -> list[Row]:
    """The GPUs from ``first`` on, below a heading."""
    width = min(width, WIDEST)
    shown = columns(width)
    drawn = [heading(width, shown, sort)]
    for index, row in list(enumerate(rows))[first : first + height - 1]:
        name = row.spec.name
        if name in marked:
            mark = MARKS[marked.index(name)]
        else:
            mark = " "
        drawn.append(line(row, width, here=index == cursor, mark=mark, shown=shown))
    return drawn


def line(row: Listed, width: int, here: bool, mark: str, shown: Sequence[str]) -> Row:
    """One GPU; a question mark behind its name says that a figure of it could not be confirmed."""
    ground = ""
    if here:
        ground = "/cursor"
    spec = row.spec
    texts = {
        "GiB": f"{spec.usable_gib:.1f}",
        "GB/s": f"{spec.bandwidth_gb_s:,.0f}",
        "TFLOP/s": _whole(row.tflops),
        "fp8": _whole(spec.dense_flops.get("fp8", 0.0) / TERA),
        "W": _whole(spec.power_w),
        "$/h": dollars(row.usd_per_hour),
        "TF/$": _whole(row.tflops_per_usd),
        "year": str(spec.release_year or MISSING),
    }
    cells: Row = []
    for name in shown:
        style = "text"
        if texts[name] == MISSING:
            style = "muted"
        cells.append((right(texts[name], WIDTHS[name]), style + ground))
    room = max(width - row_width(cells) - 2, 2)
    if spec.doubtful:
        name = shorten(spec.name, room - 1) + "?"
    else:
        name = spec.name
    return [(mark + " ", "bold accent" + ground), (left(name, room), "bold text" + ground), *cells]


def _whole(value: float | None) -> str:
    """The value without decimals; a dash for None and 0: not known."""
    if not value:
        return MISSING
    return f"{value:,.0f}"


def names(rows: Sequence[Listed], width: int) -> Row:
    """The marks and names above the columns of ``compared``."""
    room = (width - LABEL) // len(rows)
    cells: Row = [
        (left(f"{MARKS[i]} {row.spec.name}", room), "bold accent") for i, row in enumerate(rows)
    ]
    return clip([(" " * LABEL, ""), *cells], width)


def compared(rows: Sequence[Listed], width: int) -> list[Row]:
    """The facts, one column a GPU, long ones in several lines; common ones are muted."""
    texts = [facts(row) for row in rows]
    room = (width - LABEL) // len(rows)
    drawn: list[Row] = []
    for key in [key for key in texts[0] if key]:
        differ = len(rows) == 1 or len({text[key] for text in texts}) > 1
        style = "text" if differ else "muted"
        cells = [wrap(text[key], room - 2) for text in texts]
        for number, parts in enumerate(zip_longest(*cells, fillvalue="")):
            if number:
                label = ""
            else:
                label = key
            values: Row = [(left(part, room), style) for part in parts]
            drawn.append(clip([(left(label, LABEL), "muted"), *values], width))
    return drawn
