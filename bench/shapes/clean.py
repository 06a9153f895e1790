"""Training programs without a fault, as users write them, under ``gputop run``: what is found above
info in them is false, or true of a program that was meant to be clean.

    python bench/shapes/clean.py [-k WORD ...] [--keep FOLDER] [--again FOLDER]

``--keep`` leaves the records in FOLDER/NAME; ``--again`` judges those without running anything.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / name) for name in ("tests", "tui_app", "analysis", "probes")]

from faults_support import run  # noqa: E402

from gputop_analysis.findings import evaluate  # noqa: E402
from gputop_analysis.model import Finding  # noqa: E402
from gputop_probes.record.reader import RunRecord  # noqa: E402

PROGRAMS = Path(__file__).parent / "clean"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-k", nargs="*", default=[], help="only the programs of these names")
    parser.add_argument("--keep", type=Path, help="folder for the records")
    parser.add_argument("--again", type=Path, help="folder with records to judge anew")
    options = parser.parse_args()
    rows = [
        row_of(path, options.keep, options.again)
        for path in sorted(PROGRAMS.glob("*.py"))
        if not options.k or path.stem in options.k
    ]
    told = sum(bool(row["told"]) for row in rows)
    failed = sum(row["exit_code"] != 0 for row in rows)
    print(json.dumps({"bench": "clean", "runs": len(rows), "told": told, "failed": failed}))


def row_of(path: Path, keep: Path | None, again: Path | None) -> dict:
    """Outcome of one program, printed as it comes: exit code, findings above info but the machine's
    load (IN04), and infos.
    """
    with tempfile.TemporaryDirectory() as scratch:
        folder = (again or keep or Path(scratch)) / path.stem
        if again:
            record, output = RunRecord.open(folder / "run"), ""
            exit_code, findings = int((folder / "exit_code").read_text()), evaluate(record)
        else:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            outcome = run(folder, str(path), HF_HUB_OFFLINE=1)
            exit_code, findings, output = outcome.exit_code, outcome.findings, outcome.output
            (folder / "exit_code").write_text(str(exit_code))
        row = {"name": path.stem, "exit_code": exit_code, "told": _words(findings, serious=True)}
        row["infos"] = _words(findings, serious=False)
        if exit_code:
            row["output"] = output[-600:]
        load = os.getloadavg()[0]
        print(json.dumps({**row, "load": round(load, 1)}), flush=True)
        return row


def _words(findings: list[Finding], serious: bool) -> list[str]:
    return [
        f"{one.severity} {one.id} r{one.rank} {one.site or '-'}: {one.title}"
        for one in findings
        if (one.severity != "info") == serious and one.id != "IN04"
    ]


if __name__ == "__main__":
    main()
