"""How far the memory estimates are from published measurements.

    python bench/vram_accuracy.py DIR [DIR ...] [--tier trace|profile|formula|best] [--json]
    [--groups]
                                      [--limit N] [--limit-s S] [--write] [--write-intervals]

``DIR`` holds CSV files with the columns of ``docs/vram_accuracy.md``. Each row becomes a setup by
what it says, goes through the tier, and is compared with what was measured: allocated with
allocated, reserved with reserved, the driver's view with the device total. Rows are never looked
up. ``best`` (the default) takes the profile tier where it covers a row, else the formula; ``trace``
needs torch here, and traces each distinct setup once: after ``--limit-s`` seconds only those that
were traced before, and the other rows are left out.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import vram_page
from vram_cases import Case, read, score
from vram_cases.score import Answer
from vram_cases.table import rows

from gputop_analysis import catalog
from gputop_analysis.units import GIB
from gputop_analysis.vram import residuals
from gputop_analysis.vram.estimate import Estimate
from gputop_analysis.vram.question import estimate
from gputop_analysis.vram.setup import Setup
from gputop_analysis.vram.tiers import NotCoveredError

ROOT = Path(__file__).parent.parent
INTERVALS = ROOT / "analysis/gputop_analysis/data/vram_intervals.json"


def cases(folder: Path, limit: int | None) -> Iterator[Case]:
    """Those of every CSV file of the folder, or of the one file, that has the columns; at most
    ``limit`` of each.
    """
    for path in [folder] if folder.is_file() else sorted(folder.rglob("*.csv")):
        with path.open(encoding=_encoding(path), errors="replace", newline="") as lines:
            found = rows(lines)
            if found is None:
                print(f"{path.name}: no column measured_peak_GiB or oom, left out", file=sys.stderr)
                continue
            for number, row in enumerate(found):
                if limit is None or number < limit:
                    yield read(row, path.stem)


def _encoding(path: Path) -> str:
    """What a spreadsheet may have written, by its byte order mark."""
    with path.open("rb") as file:
        return "utf-16" if file.read(2) in (b"\xff\xfe", b"\xfe\xff") else "utf-8"


def answer(case: Case, tier: str | None, until: float = float("inf")) -> Answer:
    """The estimate for a case, or why there is none; no trace begins after ``until``, a reading of
    the clock.
    """
    if case.setup is None:
        return Answer(case, reason=case.reason)
    capacity = _capacity(case.gpu)
    try:
        found = (
            _traced(case.setup, capacity, until)
            if tier == "trace"
            else estimate(case.setup, tier, capacity, advice=False)
        )
    except (NotCoveredError, LookupError, ValueError, ImportError) as why:
        return Answer(case, reason=f"{tier or 'best'} tier: {why}"[:120])
    sizes = {
        "allocated": found.peak.allocated,
        "reserved": found.peak.reserved,
        "device": found.device_total,
    }
    fitting = None if capacity is None else _fits(found, capacity)
    return Answer(case, found.peak.tier, sizes.get(case.metric, 0) / GIB, fitting)


def _capacity(name: str) -> int | None:
    """Usable bytes of a GPU; None where the name does not say which of several sizes it is
    (``A100``).
    """
    try:
        match = catalog.match_gpu(name)
    except LookupError:
        return None
    sizes = {spec.memory_gb for spec in (match.spec, *match.others)}
    return match.spec.usable_bytes if len(sizes) == 1 else None


def _fits(found: Estimate, capacity: int) -> bool:
    if found.runs_in_capacity is not None:
        return found.runs_in_capacity
    return found.device_total <= capacity


def _traced(setup: Setup, capacity: int | None, until: float) -> Estimate:
    """With the trace of a setup, made once and kept in a temporary folder."""
    import vram_traces

    return estimate(setup, "trace", capacity, log=vram_traces.trace(setup, until), advice=False)


def judge(answers: list[Answer]) -> dict[str, Any]:
    """What the bench prints: per source and overall."""
    found = score.runs(answers)
    sources = sorted({one.case.source for one in answers})
    return {
        "sources": {
            source: _of([one for one in answers if one.case.source == source]) for source in sources
        },
        "overall": _of(answers),
        "megatron_hidden_1024_tests": score.errors(score.large_megatron(found)),
        "halves": {half: score.errors([run for run in found if run.half == half]) for half in "ab"},
    }


def _of(answers: list[Answer]) -> dict[str, Any]:
    found = score.runs(answers)
    return {
        "rows": len(answers),
        "rows_used": sum(not one.reason for one in answers),
        "rows_skipped": score.skipped(answers),
        "errors": score.errors(found),
        "by_metric": score.by(found, lambda run: run.metric),
        "by_tier": score.by(found, lambda run: run.tier),
        "fits": score.fits(answers),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", type=Path, nargs="+", metavar="DIR")
    parser.add_argument("--tier", choices=("trace", "profile", "formula", "best"), default="best")
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--groups", action="store_true", help="errors by what is trained, sharded and kept"
    )
    parser.add_argument("--limit", type=int, help="rows of each file at most")
    parser.add_argument(
        "--limit-s", type=float, default=float("inf"), help="begin no further trace after so long"
    )
    parser.add_argument("--write", action="store_true", help="write docs/vram_accuracy.md")
    parser.add_argument(
        "--write-intervals", action="store_true", help="write the packaged table of intervals"
    )
    options = parser.parse_args()
    for folder in options.folders:
        if not folder.exists():
            parser.error(f"no folder or file {folder}")
    tier = None if options.tier == "best" else options.tier
    if options.write_intervals and tier is None:
        parser.error(
            "--write-intervals needs a --tier: with best each tier would speak for "
            "some of its rows only"
        )
    until = time.monotonic() + options.limit_s
    answers = [
        answer(case, tier, until)
        for folder in options.folders
        for case in cases(folder, options.limit)
    ]
    if not answers:
        parser.error(f"no CSV file with these columns under {', '.join(map(str, options.folders))}")
    judged = judge(answers)
    if options.write_intervals:
        write_intervals(answers)
    if options.write:
        vram_page.write(options.tier, judged, score.runs(answers), options.limit)
    if options.json:
        short = vram_page.missed(options.tier, judged, score.runs(answers))
        print(
            json.dumps(
                {"bench": "vram_accuracy", "tier": options.tier, **judged, "missed_targets": short}
            )
        )
    else:
        vram_page.show(options.tier, judged, score.runs(answers), options.groups)


def write_intervals(answers: list[Answer]) -> None:
    """Replace what these answers speak for in the packaged tables: the formula's residuals of
    their sources, the other tiers' intervals.
    """
    found = score.runs(answers)
    of_formula = [run for run in found if run.tier == "formula"]
    if of_formula:
        known = {**residuals.packaged(), **score.residuals(of_formula)}
        in_order = {source: known[source] for source in sorted(known)}
        (INTERVALS.parent / residuals.FILE).write_text(score.as_lines(in_order))
    kept = json.loads(INTERVALS.read_text()) if INTERVALS.exists() else {}
    others = [run for run in found if run.tier != "formula"]
    INTERVALS.write_text(score.as_json({**kept, **score.interval_table(others)}))


if __name__ == "__main__":
    main()
