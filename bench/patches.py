"""Asks the agents' tool about every injected fault, applies the patch that it offers, and runs the
mended script.

    python bench/patches.py [-k WORD] [--write]

For each fault of ``tests/fault_cases``: does one call of ``verdict`` name the cause (the fault's
finding) and a file and line; is a patch offered, does ``git apply`` take it, and what share of the
promised time a step does the mended script win. ``--write`` puts the table into
docs/neighbours/patches.md; one JSON line with the figures goes to stdout.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / name) for name in ("tests", "tui_app", "analysis", "probes")]

import faults_support  # noqa: E402
from fault_cases import Case, cases, missing  # noqa: E402
from faults_support import run  # noqa: E402

from gputop.agents.answer import LIMIT_BYTES, fitted  # noqa: E402
from gputop.agents.tools import explain_finding, verdict  # noqa: E402
from gputop_analysis.summary import summarise  # noqa: E402

PAGE = ROOT / "docs" / "neighbours" / "patches.md"
ENOUGH = 0.8


@dataclass
class Row:
    """What an agent got for one fault."""

    label: str
    named: bool
    """Whether the answer is about the fault's finding."""
    where: str
    how: str
    patch: bool
    applied: bool = False
    promised_ms: float = 0.0
    won_ms: float | None = None

    @property
    def share(self) -> float | None:
        """Won of promised."""
        if self.won_ms is None or not self.promised_ms:
            return None
        return self.won_ms / self.promised_ms


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-k", default="", help="only the cases whose label has this word in it")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    rows = []
    for case in cases():
        if options.k in case.label and not missing(case):
            rows.append(ask(case))
            print(rows[-1], file=sys.stderr, flush=True)
    figures = judged(rows)
    print(json.dumps({"bench": "patches", **figures}))
    if options.write:
        PAGE.write_text(page(rows, figures), encoding="utf-8")


def ask(case: Case) -> Row:
    """Run the fault, ask, mend, run again; the script is a copy that may be changed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        scripts = folder / "scripts"
        shutil.copytree(ROOT / "tests" / "faults" / "scripts", scripts)
        faults_support.SCRIPTS = scripts
        outcome = run(folder, case.script, until=case.until, **case.environment)
        answer = json.loads(text := fitted(verdict(str(folder / "run"))))
        assert len(text.encode()) <= LIMIT_BYTES
        if answer.get("finding") != case.id:
            answer = json.loads(fitted(explain_finding(case.id, str(folder / "run"))))
        row = Row(
            label=case.label,
            named=answer.get("finding") == case.id,
            where=answer.get("where", ""),
            how=answer.get("where_is", ""),
            patch=bool(answer.get("patch")),
            promised_ms=answer.get("wins_ms_per_step") or 0.0,
        )
        if row.patch:
            row.applied = applied(folder, answer["patch"])
        if row.applied:
            before = summarise(outcome.record).step_time_p50_ms
            again = folder / "again"
            mended = run(again, case.script, **case.environment)
            row.won_ms = before - summarise(mended.record).step_time_p50_ms
        return row


def applied(folder: Path, patch: str) -> bool:
    """Whether ``git apply`` takes the patch where the run was started."""
    done = subprocess.run(
        ["git", "apply"],
        input=patch.encode(),
        cwd=folder,
        capture_output=True,
        env={**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)},
        check=False,
    )
    return done.returncode == 0


def judged(rows: list[Row]) -> dict[str, object]:
    """Counts, and the share of mended scripts that win enough."""
    shares = [row.share for row in rows if row.share is not None]
    return {
        "faults": len(rows),
        "named": sum(row.named for row in rows),
        "with_a_line": sum(bool(row.where) for row in rows),
        "patches": sum(row.patch for row in rows),
        "applied": sum(row.applied for row in rows),
        "compared": len(shares),
        "won_enough": sum(share >= ENOUGH for share in shares),
    }


def page(rows: list[Row], figures: dict[str, object]) -> str:
    """The table as Markdown."""
    lines = [
        "# What an agent is told of each injected fault",
        "",
        "Made by `python bench/patches.py --write`. One call names the cause and a line; where a "
        "patch is offered it is",
        "applied with `git apply` and the script is run again.",
        "",
        ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in figures.items()),
        "",
        "| fault | named | where | how it is known | patch | promised, ms a step | won |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        patch = "no" if not row.patch else "taken" if row.applied else "**refused**"
        won = "-" if row.won_ms is None else f"{row.won_ms:.1f}"
        named = "yes" if row.named else "**no**"
        lines.append(
            f"| {row.label} | {named} | {row.where} | {row.how} | {patch} "
            f"| {row.promised_ms:.1f} | {won} |"
        )
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()
