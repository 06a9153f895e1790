"""``gputop estimate --csv FILE``: an estimate a row, CSV or JSON lines; a bad row says why."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from gputop import spreadsheet
from gputop.cli.errors import CliError
from gputop.cli.notices import notice
from gputop_analysis import run_tables
from gputop_analysis.run_tables import Row
from gputop_analysis.vram.options import OPTION
from gputop_analysis.vram.setup import ModelShape

_SIZES = ("peak_allocated_gib", "peak_reserved_gib", "device_total_gib")
COLUMNS = (
    "row",
    "model",
    "tier",
    *_SIZES,
    "interval_low_pct",
    "interval_high_pct",
    "peak_operation",
    "smallest_gpu",
    "error",
)
_SHAPE = {field.name: field.type for field in fields(ModelShape)}


def batch(file: Path, common: Mapping[str, Any], tier: str | None, as_json: bool) -> int:
    """Print the answers; 0 where every row has one, 1 where one has none.

    Args:
        file: a header and rows. ``model`` is a name or path; without one, columns called as the
            fields of ``ModelShape`` (hidden, layers, heads, ...) describe it. Columns called as the
            options set them, empty cells leave them.
        common: options of every row that does not set them itself.
        tier: which tier answers; None: the first that covers the row.
        as_json: one JSON object a line in place of CSV.
    """
    if tier == "trace":
        raise CliError(
            "a batch is answered without torch: leave out --tier, or take profile or formula"
        )
    rows = list(_rows(file))
    writer: csv.DictWriter[str] = csv.DictWriter(
        sys.stdout, COLUMNS, extrasaction="ignore", lineterminator="\n"
    )
    if not as_json:
        writer.writeheader()
    bad = 0
    for number, row in enumerate(rows, 1):
        cells = {name: text for name, text in row.items() if name and text}
        named = {"row": number, "model": cells.get("model") or cells.get("name", "")}
        try:
            answer = {**named, **estimate_row(cells, common, tier), "error": ""}
        except (ValueError, LookupError) as error:
            bad += 1
            answer = {**named, "error": str(error)}
        print(json.dumps(answer)) if as_json else writer.writerow(spreadsheet.cells(answer))
    if bad:
        notice(f"{bad} row{'s have' if bad > 1 else ' has'} no answer; their error says why")
    return 1 if bad else 0


def estimate_row(
    cells: Mapping[str, str], common: Mapping[str, Any], tier: str | None
) -> dict[str, Any]:
    """The answer to one row, with the names of ``Estimate.to_json`` and two of this table.

    Raises:
        ValueError, LookupError: the row cannot be answered; the message says why.
    """
    from gputop.api import answer
    from gputop.models import resolve
    from gputop_analysis.vram.idle import refuse
    from gputop_analysis.vram.options import setup_of

    shape = resolve(cells["model"]) if cells.get("model") else _shape(cells)
    values = {name: value for name, value in cells.items() if name in OPTION}
    setup = setup_of(shape, {**common, **values})
    refuse({**common, **values}, setup)
    estimated = answer(setup, tier, cells.get("gpu", ""), advice=False).to_json()
    low, high = estimated["interval_pct"]
    smallest = next((fit["gpu"] for fit in estimated["fits"] if fit["fits"]), "")
    return {
        **estimated,
        "interval_low_pct": low,
        "interval_high_pct": high,
        "smallest_gpu": smallest,
    }


def _shape(cells: Mapping[str, str]) -> ModelShape:
    """The architecture that the columns give.

    Raises:
        ValueError: they give none, or something that is no number.
    """
    values: dict[str, Any] = {}
    for name, reader in _SHAPE.items():
        if name not in cells or name in ("name", "source"):
            continue
        value = cells[name]
        if reader == "int" and not value.isdigit():
            raise ValueError(f"{name} takes a whole number, not {value!r}")
        if reader == "int":
            values[name] = int(value)
        elif reader == "bool":
            values[name] = value.lower() in ("true", "yes", "1")
        else:
            values[name] = value
    if not values.get("hidden") or not values.get("layers"):
        raise ValueError("no model: fill in `model`, or hidden, layers, heads, ffn and vocab")
    values.setdefault("kv_heads", values.get("heads", 0))
    values.setdefault("head_dim", values["hidden"] // max(values.get("heads", 1), 1))
    return ModelShape(name=cells.get("name", "custom"), source="the columns of the row", **values)


def _rows(file: Path) -> Iterator[Row]:
    try:
        with file.open(newline="", encoding="utf-8-sig") as lines:
            table = run_tables.read(lines)
            if not table.columns:
                raise CliError(
                    f"{file} is empty: its first line must name the columns, for example "
                    "model,seq,micro_batch"
                )
            yield from table.rows
    except (OSError, UnicodeDecodeError) as error:
        raise CliError(f"cannot read {file} as CSV: {error}") from None
