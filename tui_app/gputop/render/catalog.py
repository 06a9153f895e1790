"""The catalog screen's rows: the table of GPUs, and the facts of some side by side."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from gputop.feed.catalog import dollars, facts
from gputop.render.rows import Row, clip, left, right, row_width, shorten, wrap
from gputop_analysis.catalog.listing import TERA, Listed
from gputop_analysis.text import MISSING

MARKS = "ABCD"
WIDTHS = {"GiB": 7, "GB/s": 7, "TFLOPS": 8, "fp8": 7, "W": 6, "$/h": 7, "TF/$": 6, "year": 6}
SORTED_BY = {
    "vram": "GiB",
    "tflops": "TFLOPS",
    "bandwidth": "GB/s",
    "price": "$/h",
    "price-performance": "TF/$",
    "year": "year",
}
"""The column that an order follows."""
_FIRST_TO_GO = ("year", "W", "fp8", "TF/$", "GB/s", "TFLOPS")
NAME = 24
"""Columns that a GPU's name should have, its mark included."""
WIDEST = 92
"""No wider than the longest name needs: the eye has to get from there to the figures."""
LABEL = 14


def columns(width: int) -> list[str]:
    """The columns that there is room for beside a name."""
    kept = list(WIDTHS)
    for name in _FIRST_TO_GO:
        if width - sum(WIDTHS[one] for one in kept) < NAME:
            kept.remove(name)
    return kept


def heading(width: int, shown: Sequence[str], sort: str) -> Row:
    """Of the columns; the one that is sorted by stands out."""
    by = SORTED_BY.get(sort, "")
    cells: Row = [(right(name, WIDTHS[name]), "bold accent" if name == by else "muted") for name in shown]
    return [(left("  GPU", max(width - row_width(cells), 4)), "muted"), *cells]


def table(
    rows: Sequence[Listed],
    width: int,
    height: int,
    first: int,
    cursor: int | None,
    marked: Sequence[str] = (),
    sort: str = "",
) -> list[Row]:
    """The GPUs from ``first`` on, below a heading."""
    width = min(width, WIDEST)
    shown = columns(width)
    drawn = [heading(width, shown, sort)]
    for index, row in list(enumerate(rows))[first : first + height - 1]:
        name = row.spec.name
        mark = MARKS[marked.index(name)] if name in marked else " "
        drawn.append(line(row, width, index == cursor, mark, shown))
    return drawn


def line(row: Listed, width: int, here: bool, mark: str, shown: Sequence[str]) -> Row:
    """One GPU; a question mark behind its name says that a figure of it could not be confirmed."""
    ground = "/cursor" if here else ""
    one = row.spec
    texts = {
        "GiB": f"{one.usable_gib:.1f}",
        "GB/s": f"{one.bandwidth_gb_s:.0f}",
        "TFLOPS": f"{row.tflops:.0f}",
        "fp8": f"{one.dense_flops['fp8'] / TERA:.0f}" if one.dense_flops.get("fp8") else MISSING,
        "W": f"{one.power_w:.0f}" if one.power_w else MISSING,
        "$/h": dollars(row.usd_per_hour),
        "TF/$": f"{row.tflops_per_usd:.0f}" if row.tflops_per_usd else MISSING,
        "year": str(one.release_year or MISSING),
    }
    cells: Row = [
        (right(texts[name], WIDTHS[name]), ("muted" if texts[name] == MISSING else "text") + ground) for name in shown
    ]
    room = max(width - row_width(cells) - 2, 2)
    name = shorten(one.name, room - 1) + "?" if one.doubtful else one.name
    return [(mark + " ", "bold accent" + ground), (left(name, room), "bold text" + ground), *cells]


def names(rows: Sequence[Listed], width: int) -> Row:
    """The marks and names above the columns of ``compared``."""
    room = (width - LABEL) // len(rows)
    cells: Row = [(left(f"{MARKS[i]} {row.spec.name}", room), "bold accent") for i, row in enumerate(rows)]
    return clip([(" " * LABEL, ""), *cells], width)


def compared(rows: Sequence[Listed], width: int) -> list[Row]:
    """The facts, one column a GPU, what is long in several lines; what all have in common is muted."""
    told = [facts(row) for row in rows]
    room = (width - LABEL) // len(rows)
    drawn: list[Row] = []
    for key in [key for key in told[0] if key]:
        differ = len(rows) == 1 or len({one[key] for one in told}) > 1
        cells = [wrap(one[key], room - 2) for one in told]
        for number, parts in enumerate(zip_longest(*cells, fillvalue="")):
            label = "" if number else key
            values: Row = [(left(part, room), "text" if differ else "muted") for part in parts]
            drawn.append(clip([(left(label, LABEL), "muted"), *values], width))
    return drawn
