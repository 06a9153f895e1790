"""The adapters of peft's method comparison: what a trace says, and what was measured.

    python bench/peft_adapters.py EXPERIMENTS CSV [--write]

``EXPERIMENTS`` is ``method_comparison/MetaMathQA/experiments`` of huggingface/peft, whose
``adapter_config.json`` are traced as they are; ``CSV`` has their measured reserved memory, with the
experiment's name in ``notes``. Those runs train Llama 3.2 3B in bf16 with four texts of at most 768
tokens, and empty the allocator's cache every ten steps. ``--write`` puts the table into
docs/vram_accuracy.md.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import statistics
import sys
from pathlib import Path
from typing import Any

from gputop.api import estimate
from gputop_analysis.units import GIB
from gputop_analysis.vram.peft_config import kind, text_of

PAGE = Path(__file__).parent.parent / "docs/vram_accuracy.md"
BEGIN, END = "<!-- adapters -->", "<!-- /adapters -->"
TRAINING: dict[str, Any] = {"seq": 768, "micro_batch": 4}
MODEL = "llama-3.2-3b"


def main() -> int:
    """Prints a row an experiment."""
    parser = argparse.ArgumentParser(description="Traces of peft's adapters.")
    parser.add_argument("experiments", type=Path)
    parser.add_argument("csv", type=Path)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    measured = measured_runs(options.csv)
    rows, errors = [], []
    for file in sorted(options.experiments.rglob("adapter_config.json")):
        name = file.parent.relative_to(options.experiments).as_posix()
        if name not in measured:
            continue
        print(name, file=sys.stderr)
        row, error = compared(file, measured[name])
        rows.append(row)
        if error is not None:
            errors.append(error)
    page = "\n".join([*summary(errors), "", *table(rows)])
    print(page)
    if options.write:
        block = re.compile(f"{BEGIN}.*{END}", re.DOTALL)
        text = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(block.sub(lambda _: f"{BEGIN}\n{page}\n{END}", text), encoding="utf-8")
    return 0


def measured_runs(path: Path) -> dict[str, float]:
    """GiB by experiment."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return {
        json.loads(row["notes"])["exp"].strip("/"): float(row["measured_peak_GiB"]) for row in rows
    }


def compared(file: Path, measured: float) -> tuple[tuple[str, ...], float | None]:
    """A row of the table, and the error in percent; None where nothing was traced."""
    config = text_of(str(file))
    name = file.parent.parent.name + " " + file.parent.name.removeprefix("llama-3.2-3B-")
    try:
        answer = estimate(MODEL, tier="trace", calibrate=False, adapter=config, **TRAINING)
    except ValueError:
        return (name, f"{measured:.2f}", f"not traced ({kind(config)})", ""), None
    reserved = answer.peak.reserved / GIB
    error = 100 * (reserved / measured - 1)
    return (name, f"{measured:.2f}", f"{reserved:.2f}", f"{error:+.1f}"), error


def summary(errors: list[float]) -> list[str]:
    """The whole in a line."""
    sizes = sorted(abs(error) for error in errors)
    ninth = sizes[int(0.9 * (len(sizes) - 1))]
    return [
        f"{len(sizes)} runs traced: median error {statistics.median(sizes):.1f} %, nine of ten "
        f"within {ninth:.1f} %, the worst {sizes[-1]:.1f} %."
    ]


def table(rows: list[tuple[str, ...]]) -> list[str]:
    """Markdown."""
    lines = ["| experiment | measured GiB | traced GiB | error % |", "|---|---|---|---|"]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


if __name__ == "__main__":
    sys.exit(main())
