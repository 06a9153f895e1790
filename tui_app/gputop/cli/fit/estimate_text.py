"""An estimate as text for a terminal: plain into a file, in colour for a reader."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from gputop.render import vram, vram_fits
from gputop.render.rows import Row, left, right, row_text, shorten, wrap

if TYPE_CHECKING:
    from gputop_analysis.vram.estimate import Estimate

LEVERS, SIZES = 8, 7
_LEAST, _MOST = 60, 100


def lines(estimate: Estimate, width: int = 80) -> list[Row]:
    """All rows of the answer."""
    inner = min(max(width, _LEAST), _MOST) - 2
    rows = _head(estimate, inner)
    rows += [
        [],
        vram.total_bar(estimate, inner, mono=not _coloured()),
        *vram.table(estimate, inner, not _coloured()),
    ]
    rows += [[], *vram.peak_rows(estimate, inner, 4)]
    rows += [[], *_fits(estimate, inner)]
    if estimate.levers:
        rows += [[], [("to need less", "bold accent")], *vram.lever_rows(estimate, inner)[:LEVERS]]
    if note := vram.notes(estimate, inner):
        rows += [[], [("notes and sources", "bold accent")], *note]
    return [[(" ", ""), *row] if row else row for row in rows]


def show(estimate: Estimate) -> None:
    """Print it."""
    from gputop.cli.printing import report_width

    for row in lines(estimate, report_width()):
        print(painted(row) if _coloured() else row_text(row).rstrip())


def _head(estimate: Estimate, width: int) -> list[Row]:
    name, how = estimate.setup.model.name, vram.manner(estimate)
    manner = wrap(how, width - len(name) - 2)
    rows: list[Row] = [[(name, "bold text"), ("  " + manner[0], "muted")]]
    rows += [[(" " * (len(name) + 2) + line, "muted")] for line in manner[1:]]
    wrapped_lines = vram.likely(estimate)
    likely: list[Row] = (
        [[(line, "muted")] for line in wrap(wrapped_lines, width)] if wrapped_lines else []
    )
    return [*rows, [], vram.headline(estimate), *likely, vram.figures(estimate, width)]


def _fits(estimate: Estimate, width: int) -> list[Row]:
    sizes = vram_fits.sizes(estimate)
    first = next((size for size in sizes if size.fits), None)
    if first:
        word = f"fits from {first.memory_gb} GB on"
    else:
        word = "fits no GPU of the catalog"
    end = ""
    if estimate.gpu and estimate.max_micro_batch is not None:
        end = (
            f"on {vram.short_gpu(estimate.gpu)} the largest micro-batch is "
            f"{estimate.max_micro_batch}"
        )
    head: Row = [(left(word, width - len(end)), "bold accent"), (right(end, len(end)), "text")]
    return [
        head if len(word) + len(end) < width else [(shorten(word, width), "bold accent")],
        *vram_fits.rows(sizes, width, SIZES),
    ]


def _coloured() -> bool:
    return (
        sys.stdout.isatty()
        and not os.environ.get("NO_COLOR")
        and os.environ.get("TERM") not in ("", "dumb", None)
    )


def painted(row: Row) -> str:
    """The row with the escape codes of its roles' colours."""
    return "".join(_paint(text, style) for text, style in row)


def _paint(text: str, style: str) -> str:
    from gputop.app.theme import preferred, variables

    role = style.removeprefix("bold ").partition("/")[0]
    if not role or not text.strip():
        return text
    values = variables("light" not in preferred(), False)
    colour = values.get(f"phase-{role}") or values.get(f"role-{role}") or "#808080"
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    bold = "1;" if style.startswith("bold") else ""
    return f"\033[{bold}38;2;{red};{green};{blue}m{text}\033[0m"
