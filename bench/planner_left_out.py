"""Residuals of published runs, plain and with what was fitted on their source taken away.

    python bench/planner_left_out.py DIR [--write]

For each source of ``DIR`` (as bench/planner_accuracy.py reads them) the constants and rows of
tables that rest on that source alone are replaced by what a neighbour would have (``WITHOUT``), and
its runs are predicted anew. Prints how many of them lie inside the interval that the other sources
give; ``--write`` packages the residuals, at most ``MOST`` of a source, for tests and for what
counts as calibrated.
"""

from __future__ import annotations

import argparse
import csv
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import planner_accuracy

from gputop_analysis.catalog import efficiency
from gputop_analysis.data import table
from gputop_analysis.planner import frameworks, hardware, intervals, layers
from gputop_analysis.planner.answers import Answer

PACKAGED = Path(__file__).parent.parent / "analysis/gputop_analysis/data" / intervals.RESIDUALS
COLUMNS: tuple[str, ...] = (
    "source",
    "axes",
    "left_open",
    "rest",
    "stalled",
    "log_error",
    "log_error_without",
)
MOST = 150
Rows = tuple[dict[str, str], ...]


def _devices(rows: Rows, architecture: str) -> Rows:
    return tuple(row for row in rows if row["architecture"] != architecture)


def _changed(rows: Rows, where: dict[str, str], **values: str) -> Rows:
    return tuple(
        row | values if all(row[key] == value for key, value in where.items()) else row
        for row in rows
    )


TABLES: dict[str, dict[str, Callable[[Rows], Rows]]] = {
    "simumax": {"calib/devices.csv": lambda rows: _devices(rows, "Blackwell")},
    "bigscience": {
        "calib/devices.csv": lambda rows: _devices(rows, "Volta"),
        "calib/networks.csv": lambda rows: _changed(
            rows, {"kind": "omni-path"}, hop_us="9", bandwidth_share="0.85"
        ),
    },
    "nemo_legacy": {
        "calib/devices.csv": lambda rows: _changed(
            rows, {"architecture": "Hopper"}, matmul_share_fp8=""
        )
    },
    "ultrascale_playbook": {
        "calib/networks.csv": lambda rows: _changed(
            rows, {"kind": "efa"}, hop_us="15", gather_share="1.0", hops="nodes"
        ),
        "frameworks.csv": lambda rows: tuple(row for row in rows if row["name"] != "nanotron"),
    },
}
"""Rows that rest on a source alone, as they would be without it."""
CONSTANTS: dict[str, dict[str, float]] = {
    "simumax": {
        "WIDE_HEAD_SLOWDOWN": 1.0,
        "WIDE_HEAD_BACKWARD_SLOWDOWN": 1.0,
        "GROUPED_WEIGHT_SLOWDOWN": 1.0,
        "FEW_ROWS_SLOWDOWN": 1.0,
        "PERMUTATION_SLOWDOWN": 1.0,
        "BACKWARD_FLASH_SLOWDOWN": 1.0,
    },
}
"""Of ``gputop_analysis.planner.layers``."""


def main(argv: list[str] | None = None) -> int:
    """Prints a line a source."""
    options = _parser().parse_args(argv)
    packaged: list[dict[str, Any]] = []
    for path in sorted(Path(options.folder).rglob("*.csv")):
        plain = _timed(path)
        if not plain:
            continue
        bare = _without(path) if path.stem in {*TABLES, *CONSTANTS} else plain
        packaged += _packed(path.stem, plain, bare)
    print("\n".join(coverage_table(packaged)))
    if options.write:
        with PACKAGED.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(packaged)
    return 0


def inside(rows: Sequence[Mapping[str, Any]], source: str, error: str = "log_error") -> list[bool]:
    """Whether each run of a source is in the 80 % interval that the other sources give."""
    known = intervals.calibrated(source)
    found = []
    for row in rows:
        if row["source"] != source:
            continue
        new = intervals.not_in(tuple(row["axes"].split("; ")), known)
        new += ("fields left open",) * int(row["left_open"])
        low, high = intervals.uncalibrated(float(row["rest"]), new)
        found.append(low <= math.exp(float(row[error])) <= high)
    return found


def coverage_table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Markdown: share of each source inside with what its runs leave open of it, and their mean."""
    lines = [
        "| source left out | runs | inside % | without stalls | and what was fitted on it | 95 % |",
        "|---|---|---|---|---|---|",
    ]
    columns = []
    for source in dict.fromkeys(row["source"] for row in rows):
        steady = [row for row in rows if not int(row["stalled"])]
        cells = [inside(rows, source), inside(steady, source)]
        cells += [inside(steady, source, "log_error_without")]
        columns.append([100 * sum(cell) / len(cell) for cell in cells])
        shares = " | ".join(f"{share:.0f}" for share in columns[-1])
        low, high = chance(sum(cells[0]), len(cells[0]))
        span = f"{100 * low:.0f} to {100 * high:.0f}"
        lines.append(f"| {source} | {len(cells[0])} | {shares} | {span} |")
    means = [sum(column) / len(column) for column in zip(*columns, strict=True)]
    return [*lines, "| mean | | " + " | ".join(f"{mean:.0f}" for mean in means) + " | |"]


def chance(count: int, runs: int) -> tuple[float, float]:
    """Shares, 0 to 1, that ``count`` of ``runs`` agree with at 95 % (Wilson's score interval)."""
    squared = 1.96**2
    middle = (count + squared / 2) / (runs + squared)
    spread = math.sqrt(squared * (count * (runs - count) / runs + squared / 4)) / (runs + squared)
    return middle - spread, middle + spread


def _timed(path: Path) -> list[Answer]:
    planner_accuracy._answered.cache_clear()
    _, answers, _ = planner_accuracy._answered(path)
    return [answer for answer in answers if answer.case.ran and answer.case.step_s]


def _without(path: Path) -> list[Answer]:
    """Its runs as predicted without what was fitted on them."""
    changes = TABLES.get(path.stem, {})

    def changed(name: str) -> Rows:
        rows = table(name)
        return changes[name](rows) if name in changes else rows

    with ExitStack() as stack:
        for module in (efficiency, hardware, frameworks):
            stack.enter_context(patch.object(module, "table", changed))
        for name, value in CONSTANTS.get(path.stem, {}).items():
            stack.enter_context(patch.object(layers, name, value))
        _forget()
        found = _timed(path)
    _forget()
    return found


def _forget() -> None:
    efficiency._row_of.cache_clear()
    frameworks.frameworks.cache_clear()


def _packed(source: str, plain: list[Answer], bare: list[Answer]) -> list[dict[str, Any]]:
    """Rows of the packaged file; those of a large source are drawn by hash."""
    rows = []
    for answer, other in zip(plain, bare, strict=True):
        case = answer.case
        rows.append(
            {
                "source": source,
                "axes": "; ".join(intervals.axes(case.job, case.cluster, answer.layout)),
                "left_open": int(len(case.layouts) > 1),
                "rest": round(float(intervals.rest_share(other.parts)[0]), 3),
                "stalled": int(planner_accuracy.stalled(answer)),
                "log_error": round(math.log(case.step_s / answer.seconds), 3),
                "log_error_without": round(math.log(case.step_s / other.seconds), 3),
            }
        )
    rows.sort(key=lambda row: zlib.crc32(repr(row).encode()))
    return rows[:MOST]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", metavar="DIR")
    parser.add_argument("--write", action="store_true", help="package the residuals")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
