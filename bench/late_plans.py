"""What ``gputop plan`` says of training runs whose sources came after all else stood.

    python bench/late_plans.py [--rows]

``bench/data/late_plans.csv`` has the command that a user would type for each published run, and how
many seconds a step took. What these rows showed was mended by mechanism; no constant was fitted to
them. Rows that are refused are counted apart.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import json
import shlex
import statistics
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from gputop.cli.errors import CliError
from gputop.cli.split.plan import execute

DATA = Path(__file__).parent / "data"


@dataclass(frozen=True)
class Answer:
    """One row and what was answered."""

    source: str
    name: str
    refusal: str
    error: float
    """Prediction over measurement, less one."""
    is_inside: bool


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", action="store_true", help="each of them, too")
    options = parser.parse_args()
    found = answers()
    if options.rows:
        for answer in found:
            print(_row(answer))
    by_source: dict[str, list[Answer]] = defaultdict(list)
    for answer in found:
        by_source[answer.source].append(answer)
    print("source                 runs  refused  mean %  median %  bias %  in range")
    for source, own in (*by_source.items(), ("all", found)):
        print(_line(source, own))


def answers() -> list[Answer]:
    """What is said of each row."""
    with (DATA / "late_plans.csv").open(encoding="utf-8") as file:
        return list(map(_answer, csv.DictReader(file)))


def _answer(row: dict[str, str]) -> Answer:
    command = shlex.split(row["command"].replace("late_models/", f"{DATA}/late_models/"))
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(io.StringIO()):
            execute([*command, "--json"])
    except CliError as refusal:
        return Answer(row["source"], row["row"], f"refused: {refusal}", 0.0, False)
    pick = json.loads(said.getvalue())["pick"]
    low, high = pick["step_time_interval_s"]
    measured_s = float(row["step_s"])
    error = pick["step_time_s"] / measured_s - 1
    return Answer(row["source"], row["row"], "", error, low <= measured_s <= high)


def _row(answer: Answer) -> str:
    said = (
        answer.refusal or f"{100 * answer.error:+6.1f} %{'' if answer.is_inside else '  outside'}"
    )
    return f"{answer.source}: {answer.name}: {said}"


def _line(source: str, every: list[Answer]) -> str:
    answered = [answer for answer in every if not answer.refusal]
    refused = len(every) - len(answered)
    if not answered:
        return f"{source:22} {len(every):4} {refused:8}"
    errors = [100 * answer.error for answer in answered]
    sizes = list(map(abs, errors))
    inside = sum(answer.is_inside for answer in answered)
    return (
        f"{source:22} {len(every):4} {refused:8} {statistics.mean(sizes):7.1f} "
        f"{statistics.median(sizes):9.1f} {statistics.median(errors):7.1f} "
        f"{inside:5}/{len(answered)}"
    )


if __name__ == "__main__":
    main()
