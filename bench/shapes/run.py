"""Faults and clean twins of many shapes under ``gputop run``: recall, precision, place, rank, and
what was promised.

    python bench/shapes/run.py [-k WORD ...] [--out FILE] [--clean | --faults]

Each outcome is appended to FILE (JSON lines) as it comes; ``--table FILE`` prints the figures of
what is there, and ``--again FILE`` judges the records that an earlier run kept (``--keep FOLDER``)
without running anything.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import signal
import statistics
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / name) for name in ("tests", "tui_app", "analysis", "probes")]

from cases import BATCHES, ENVIRONMENT, SCRIPTS, Shape  # noqa: E402
from faults_support import SITE, Outcome, run  # noqa: E402

from gputop_analysis.findings import evaluate  # noqa: E402
from gputop_analysis.model import Finding  # noqa: E402
from gputop_probes.record.reader import RunRecord  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "-k", nargs="*", default=[], help="only the faults of these names, or of these scripts"
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--keep", type=Path, help="folder for the records")
    parser.add_argument("--again", type=Path, help="folder with records to judge anew")
    parser.add_argument("--faults", action="store_true", help="no clean twins")
    parser.add_argument("--clean", action="store_true", help="clean twins only")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time")
    parser.add_argument("--table", type=Path)
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's `&` has it ignored
    if options.table:
        table([json.loads(line) for line in options.table.read_text().splitlines()])
        return
    with ThreadPoolExecutor(options.jobs) as pool:
        table(list(pool.map(lambda one: _row(one[0], one[1], options), _chosen(options))))


def _chosen(options: argparse.Namespace) -> list[tuple[Shape, str]]:
    """Shapes and the names of their runs: the fault, and its twin. Not those that the output file
    has.
    """
    done = set()
    if options.out and options.out.exists():
        done = {json.loads(line)["name"] for line in options.out.read_text().splitlines()}
    runs = []
    for shape in itertools.chain(*BATCHES):
        if not options.k or shape.name in options.k or shape.script in options.k:
            names = [shape.name] * (not options.clean) + [f"clean_{shape.name}"] * (
                shape.twin and not options.faults
            )
            runs += [(shape, name) for name in names if name not in done]
    return runs


def _row(shape: Shape, name: str, options: argparse.Namespace) -> dict:
    if options.again and not (options.again / name / "truth.json").exists():
        return {"name": name, "error": "no record"}
    try:
        row = outcome_of(shape, name, options.keep, options.again)
    except Exception as error:  # a run that fails is a row that is wrong
        row = {"name": name, "error": f"{type(error).__name__}: {error}"[:300]}
    print(json.dumps(row), flush=True)
    if options.out:
        with options.out.open("a") as file:
            file.write(json.dumps(row) + "\n")
    return row


def outcome_of(shape: Shape, name: str, keep: Path | None, again: Path | None) -> dict:
    """Run one training, or judge its record anew."""
    if again:
        meta = json.loads((again / name / "truth.json").read_text())
        record = RunRecord.open(again / name / "run")
        outcome = Outcome(meta["exit_code"], meta["truth"], record, "", name, evaluate(record))
        return judged(shape, name, outcome)
    with tempfile.TemporaryDirectory() as scratch:
        folder = (keep / name) if keep else Path(scratch)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        paths = os.pathsep.join(
            [str(ROOT / "tests" / "faults" / "scripts"), SITE, os.environ.get("PYTHONPATH", "")]
        )
        until = "stack_dump" if shape.hangs and name == shape.name else None
        extra = {"FAULT": name, "PYTHONPATH": paths, **ENVIRONMENT.get(name, {})}
        outcome = run(folder, str(SCRIPTS / shape.script), until=until, **extra)
        (folder / "truth.json").write_text(
            json.dumps({"exit_code": outcome.exit_code, "truth": outcome.truth})
        )
        return judged(shape, name, outcome)


def judged(shape: Shape, name: str, outcome: Outcome) -> dict:
    """The outcome beside what is expected."""
    serious = [one for one in outcome.findings if one.severity != "info"]
    told = [
        f"{one.severity} {one.id} r{one.rank} {one.site or '-'}: {one.title}" for one in serious
    ]
    row = {"name": name, "exit_code": outcome.exit_code, "told": told}
    row["infos"] = [f"{one.id} {one.title}" for one in outcome.findings if one.severity == "info"]
    if name != shape.name:
        row["false"] = [one.id for one in serious if one.id != "IN04"]
        row["well"] = outcome.exit_code == 0
        if not row["well"]:
            row["output"] = outcome.output[-600:]
        return row
    pool = outcome.findings if shape.info else serious
    right = [one for one in pool if one.id in shape.ids]
    right.sort(key=lambda one: (one.rank != shape.rank, not at(shape, one)))
    best = right[0] if right else None
    row["found"] = best is not None
    row["rank"] = best is None or best.rank == shape.rank
    row["place"] = None if not shape.marked or best is None else at(shape, best)
    row["site"] = best.site if best else None
    row["false"] = [one.id for one in serious if one.id not in {*shape.ids, *shape.also, "IN04"}]
    row["truth_ms"] = outcome.truth.get("truth_ms_per_step") if shape.timed else None
    row["promised_ms"] = best.recoverable_ms_per_step if best and shape.timed else None
    codes = shape.exit_code if isinstance(shape.exit_code, tuple) else (shape.exit_code,)
    row["well"] = outcome.exit_code in codes
    if not row["well"]:
        row["output"] = outcome.output[-600:]
    return row


def at(shape: Shape, finding: Finding) -> bool:
    """Whether the finding points at a line that carries the fault's mark."""
    path, _, line = (finding.site or "").partition(":")
    number = "".join(one for one in line.split(" ")[0] if one.isdigit())
    return bool(number) and (Path(path).name, int(number)) in shape.marked


def table(rows: list[dict]) -> None:
    """Figures, and the cases that are wrong."""
    latest = {row["name"]: row for row in rows}
    broken = [row for row in latest.values() if "error" in row or not row["well"]]
    faults = [row for row in latest.values() if "found" in row]
    clean = [row for row in latest.values() if "error" not in row and "found" not in row]
    found = [row for row in faults if row["found"]]
    false = sum(len(row["false"]) for row in [*faults, *clean])
    placed = [row["place"] for row in found if row["place"] is not None]
    offs = [
        row["promised_ms"] / row["truth_ms"] - 1
        for row in found
        if row.get("truth_ms") and row["promised_ms"]
    ]
    figures = {
        "faults": len(faults),
        "recall": round(len(found) / max(1, len(faults)), 3),
        "precision": round(len(found) / max(1, len(found) + false), 3),
        "rank": f"{sum(row['rank'] for row in found)}/{len(found)}",
        "place": f"{sum(placed)}/{len(placed)}",
        "clean": len(clean),
        "clean_with_finding": sum(bool(row["false"]) for row in clean),
        "promised_off_median": round(statistics.median(map(abs, offs)), 3) if offs else None,
        "promised_within_quarter": f"{sum(abs(one) <= 0.25 for one in offs)}/{len(offs)}",
        "broken": len(broken),
    }
    print(json.dumps({"bench": "shapes", **figures}))
    for row in latest.values():
        if "error" in row or not row["well"]:
            print(
                "broken",
                row["name"],
                row.get("error"),
                row.get("exit_code"),
                row.get("output", "")[-300:],
            )
            continue
        wrong = []
        if "found" in row:
            wrong += [] if row["found"] else ["missed"]
            wrong += [] if row["rank"] else ["rank"]
            wrong += [f"place {row['site']}"] if row["place"] is False else []
            if (
                row.get("truth_ms")
                and row["promised_ms"]
                and abs(row["promised_ms"] / row["truth_ms"] - 1) > 0.25
            ):
                wrong += [f"promised {row['promised_ms']:.1f} of {row['truth_ms']:.1f} ms"]
            if row["found"] and row.get("truth_ms") and not row["promised_ms"]:
                wrong += [f"promised nothing of {row['truth_ms']:.1f} ms"]
        wrong += [f"false {one}" for one in row["false"]]
        if wrong:
            print("wrong ", row["name"], "; ".join(wrong), "|", " / ".join(row["told"])[:400])


if __name__ == "__main__":
    main()
