"""The ranked table of the strategy screen as a file."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

from gputop.feed.planning import Planned
from gputop.spreadsheet import cells


def exported(planned: Planned, kind: str) -> str:
    """All rows of the answer, best first, as ``json`` or ``csv``; names carry their units."""
    rows = [{"strategy": choice.name, **choice.to_json()} for choice in planned.choices]
    if kind == "csv":
        return _csv(rows)
    return json.dumps({**_question(planned), "strategies": rows}, indent=2) + "\n"


def _question(planned: Planned) -> dict[str, Any]:
    ask = planned.ask
    return {
        "model": ask.model.name,
        "gpu": ask.gpu,
        "gpus": ask.gpus,
        "seq": ask.seq,
        "global_batch": ask.global_batch,
        "dtype": ask.dtype,
        "optimizer": ask.optimizer,
        "lora": ask.lora,
        "pick": planned.pick.name if planned.pick else None,
        "usd_per_gpu_hour": planned.usd_per_gpu_hour,
    }


def _csv(rows: list[dict[str, Any]]) -> str:
    """One line a strategy; the interval's ends and the step's parts are own columns."""
    flat = []
    for row in rows:
        low, high = row.pop("step_time_interval_s")
        flat.append(
            {**row, "step_time_low_s": low, "step_time_high_s": high, **_parts(row.pop("parts_s"))}
        )
    out = io.StringIO()
    writer = csv.DictWriter(
        out, list(flat[0]) if flat else ["strategy"], extrasaction="ignore", lineterminator="\n"
    )
    writer.writeheader()
    writer.writerows(map(cells, flat))
    return out.getvalue()


def _parts(parts: dict[str, float]) -> dict[str, float]:
    return {f"{name}_s": value for name, value in parts.items()}
