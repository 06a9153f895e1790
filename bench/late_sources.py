"""What ``gputop estimate`` says of training runs whose sources came after all else stood.

    python bench/late_sources.py [--rows]

``bench/data/late_sources.csv`` has the command that a user would type for each published run, and
what was measured, in GiB; models that no formula knows are traced. Nothing was fitted to these
rows; what they showed was mended by mechanism. An answer's range is of the device total; for rows
that measured what was allocated or reserved it is held, in the same percents, around that.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import json
import statistics
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from gputop.cli.fit.estimate import execute

ROWS = Path(__file__).parent / "data/late_sources.csv"
KINDS = {
    "allocated": "peak_allocated_gib",
    "reserved": "peak_reserved_gib",
    "device": "device_total_gib",
}


@dataclass(frozen=True)
class Answer:
    """One row and what was answered."""

    source: str
    name: str
    error: float
    """Estimate over measurement, less one."""
    is_inside: bool
    is_enough: bool
    """Whether it was measured less than ``needs at most``."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", action="store_true", help="each of them, too")
    options = parser.parse_args()
    with ROWS.open(encoding="utf-8") as file:
        answers = list(map(_answer, csv.DictReader(file)))
    if options.rows:
        for answer in answers:
            print(f"{100 * answer.error:+6.1f} %  {answer.source}: {answer.name}")
    by_source: dict[str, list[Answer]] = defaultdict(list)
    for answer in answers:
        by_source[answer.source].append(answer)
    print("source               runs  median %   p90 %  bias %  in range  at most")
    for source, own in (*by_source.items(), ("all", answers)):
        print(_line(source, own))


def _answer(row: dict[str, str]) -> Answer:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(io.StringIO()):
        command = row["command"].replace("late_models/", f"{ROWS.parent}/late_models/")
        tier = () if "--tier" in command else ("--tier", "formula")
        execute([*command.split(), *tier, "--json", "--no-calibration"])
    found = json.loads(said.getvalue())
    measured, estimated = float(row["measured_gib"]), found[KINDS[row["kind"]]]
    low, high = (1 + percent / 100 for percent in found["interval_pct"])
    most = found["needs_at_most_gib"] / found["device_total_gib"]
    return Answer(
        row["source"],
        row["row"],
        estimated / measured - 1,
        low * estimated <= measured <= high * estimated,
        measured <= most * estimated,
    )


def _line(source: str, answers: list[Answer]) -> str:
    errors = sorted(abs(100 * answer.error) for answer in answers)
    bias = statistics.median(100 * answer.error for answer in answers)
    worst = errors[min(len(errors) - 1, int(0.9 * len(errors)))]
    inside = sum(answer.is_inside for answer in answers)
    enough = sum(answer.is_enough for answer in answers)
    count = len(answers)
    return (
        f"{source:20} {count:4} {statistics.median(errors):9.1f} {worst:7.1f} {bias:7.1f} "
        f"{inside:5}/{count:<3} {enough:5}/{count}"
    )


if __name__ == "__main__":
    main()
