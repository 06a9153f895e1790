"""Injects every fault of ``tests/fault_cases`` for real, runs the clean trainings too, and says how
well gputop did.

    python bench/faults.py [-k WORD] [--write]

Each fault is one training under ``gputop run``, two at a time; what comes out wrong is run once
more alone. A fault counts as detected when its finding comes with the right rank and place. A
finding above info that the case does not allow counts against precision, in clean runs too. The
recoverable time is held against what the fault cost by the script's own clock. ``--write`` puts the
table into docs/faults.md with the commit that it was made at; one JSON line with the figures goes
to stdout.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / name) for name in ("tests", "tui_app", "analysis", "probes")]

from fault_cases import Case, Clean, cases, clean_runs, missing  # noqa: E402
from faults_support import Outcome, machine, run, run_case  # noqa: E402

PAGE = ROOT / "docs" / "faults.md"
AT_ONCE = 2


@dataclass
class Row:
    """What came of one fault."""

    id: str
    fault: str
    detected: bool
    placed: bool
    truth_ms: float
    found_ms: float | None
    others: list[str]
    again: bool = False
    """Whether it took a second run, alone."""

    @property
    def right(self) -> bool:
        """Whether all came out as it should."""
        return (
            (self.detected or not self.id)
            and self.placed
            and not self.others
            and (self.error or 0.0) <= 0.2
        )

    @property
    def error(self) -> float | None:
        """Relative error of the recoverable time; None where the fault costs none or it was not
        told.
        """
        return (
            abs(self.found_ms - self.truth_ms) / self.truth_ms
            if self.truth_ms and self.found_ms
            else None
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-k", default="", help="only the cases whose label has this word in it")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    faults = [one for one in cases() if options.k in one.label and not missing(one)]
    skipped = [one for one in cases() if options.k in one.label and missing(one)]
    chosen = [one for one in clean_runs() if options.k in one.label]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        rows = list(pool.map(lambda one: _say(tried(inject, one, one.alone)), faults))
        clean = list(pool.map(lambda one: _say(tried(watch, one, False)), chosen))
    figures = judge(rows, clean)
    print(json.dumps({"bench": "faults", **figures}))
    if options.write:
        PAGE.write_text(page(rows, clean, skipped, figures))


def tried(attempt: Callable[[Any], Row], one: Case | Clean, alone: bool) -> Row:
    """Beside another run, and once more with the machine to itself where that came out wrong."""
    with machine(alone):
        row = attempt(one)
    if row.right or alone:
        return row
    with machine(True):
        return replace(attempt(one), again=True)


def inject(case: Case) -> Row:
    """Run one fault and compare."""
    with tempfile.TemporaryDirectory() as folder:
        outcome = run_case(Path(folder), case)
    found = next(
        (one for one in outcome.findings if one.id == case.id and one.severity in case.severity),
        None,
    )
    placed = (
        found is not None
        and found.rank == case.rank
        and bool(re.search(case.site, found.site or ""))
        and bool(re.search(case.title, found.title))
    )
    return Row(
        case.id,
        case.name,
        found is not None,
        placed,
        float(outcome.truth.get("truth_ms_per_step", 0.0)),
        found.recoverable_ms_per_step if found else None,
        others(outcome, {case.id, *case.also}),
    )


def watch(clean: Clean) -> Row:
    """Run one clean training."""
    with tempfile.TemporaryDirectory() as folder:
        outcome = run(Path(folder), clean.script, **clean.environment)
    return Row("", clean.name, False, outcome.exit_code == 0, 0.0, None, others(outcome, set()))


def others(outcome: Outcome, allowed: set[str]) -> list[str]:
    """Ids of findings above info that should not be there. Waiting for a core is true of any run on
    a busy machine.
    """
    return sorted(id for id in outcome.serious if id not in allowed)


def judge(rows: list[Row], clean: list[Row]) -> dict[str, object]:
    """Recall, precision and the error of the recoverable time."""
    detected = sum(row.detected and row.placed for row in rows)
    false = sum(len(row.others) for row in [*rows, *clean])
    errors = [row.error for row in rows if row.error is not None]
    return {
        "faults": len(rows),
        "recall": round(detected / len(rows), 3) if rows else None,
        "precision": round(detected / (detected + false), 3) if detected + false else None,
        "recoverable_error_median": round(statistics.median(errors), 3) if errors else None,
        "recoverable_compared": len(errors),
        "clean_runs": len(clean),
        "clean_with_finding": sum(bool(row.others) for row in clean),
        "second_runs": sum(row.again for row in [*rows, *clean]),
    }


def page(rows: list[Row], clean: list[Row], skipped: list[Case], figures: dict[str, object]) -> str:
    """docs/faults.md."""
    lines = [
        "# Injected faults",
        "",
        f"Made by `python bench/faults.py --write` at commit {_commit()}, {os.cpu_count()} cores, "
        f"no GPU, Python {platform.python_version()}, {_torch()}.",
        "",
        "Every line is a real training with the fault in it, watched by `gputop run`. The truth "
        "is the script's own",
        "clock. A finding above info that is neither the fault's own nor as true of the script is "
        "listed as other.",
        "",
        f"Recall {figures['recall']}, precision {figures['precision']}, recoverable time off by "
        f"{figures['recoverable_error_median']} in the median of "
        f"{figures['recoverable_compared']}; {figures['clean_with_finding']} of "
        f"{figures['clean_runs']} clean runs with a finding above info. Two runs went at a time "
        f"on the two cores; {figures['second_runs']} came out wrong beside another and were run "
        "again alone, and what is listed is that second run.",
        "",
        "| finding | injected | detected | rank and place | truth, ms a step | found, ms a step | "
        "error | other |",
        "|---|---|---|---|---|---|---|---|",
        *map(_line, rows),
        "",
        "| clean run | ended well | other |",
        "|---|---|---|",
        *(
            f"| {row.fault} | {_yes(row.placed)} | {', '.join(row.others) or 'none'} |"
            for row in clean
        ),
        "",
    ]
    if skipped:
        lines += [
            "Not injected here:",
            "",
            *(f"- {one.id}, {one.name}: {missing(one)}" for one in skipped),
            "",
        ]
    return "\n".join(lines)


def _line(row: Row) -> str:
    truth = f"{row.truth_ms:.1f}" if row.truth_ms else "-"
    found = f"{row.found_ms:.1f}" if row.found_ms is not None else "-"
    error = f"{row.error:.0%}".replace("%", " %") if row.error is not None else "-"
    others = ", ".join(row.others) or "none"
    place = _yes(row.placed)
    return (
        f"| {row.id} | {row.fault} | {_yes(row.detected)} | {place} | {truth} | "
        f"{found} | {error} | {others} |"
    )


def _yes(value: bool) -> str:
    return "yes" if value else "**no**"


def _say(row: Row) -> Row:
    told = f"{row.truth_ms:.1f} ms, found {row.found_ms}" if row.truth_ms else ""
    wrong = [] if row.detected or not row.id else ["not detected"]
    wrong += [] if row.placed else ["wrong place"]
    wrong += [f"also {id}" for id in row.others]
    print(
        f"{row.id or 'clean':6} {row.fault}: {', '.join(wrong) or 'right'} {told}",
        file=sys.stderr,
        flush=True,
    )
    return row


def _commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or "unknown"


def _torch() -> str:
    from importlib.metadata import version

    return f"torch {version('torch')}"


if __name__ == "__main__":
    main()
