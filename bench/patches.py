"""Asks the agents' tool about every injected fault, applies the patch that it offers, and runs the
mended script.

    python bench/patches.py [-k WORD] [--folder DIR] [--write]

For each fault of ``tests/fault_cases``: does one call of ``verdict`` name the cause (the fault's
finding) and a file and line; is a patch offered, does ``git apply`` take it, and what share of the
promised time a step does the mended script win: the mean step of the script as it was less that of
the mended one, run in turns, against what the finding promises in the same runs. Where it promises
no time: is it gone. With ``--folder`` runs are kept there and those of an earlier call are
used again, so that it can be done in pieces. ``--write`` puts the table into
docs/neighbours/patches.md; one JSON line with the figures goes to stdout.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / name) for name in ("tests", "tui_app", "analysis", "probes")]

import faults_support  # noqa: E402
from fault_cases import Case, cases, missing  # noqa: E402
from faults_support import run  # noqa: E402

from gputop.agents.answer import LIMIT_BYTES, fitted  # noqa: E402
from gputop.agents.tools import explain_finding, verdict  # noqa: E402
from gputop_analysis.findings import evaluate  # noqa: E402
from gputop_analysis.findings.host.compilation import SETTLED_STEPS  # noqa: E402
from gputop_analysis.findings.shares import run_queue  # noqa: E402
from gputop_analysis.view import RunView  # noqa: E402
from gputop_probes.record.reader import RecordError, RunRecord  # noqa: E402

PAGE = ROOT / "docs" / "neighbours" / "patches.md"
ENOUGH = 0.8
TURNS = 3
"""Runs of the mended script, and between them runs of it as it was."""
LONGEST_S = 240
STARTED, STARTED_OF = 20, {"HO09": SETTLED_STEPS}
"""Steps that are left out of means; more where a finding speaks of later ones only."""
OF_CORES = ("HO14", "IN04")
"""Findings that promise what waits for a core take."""


@dataclass
class Row:
    """What an agent got for one fault."""

    label: str
    finding: str
    first: bool
    """Whether the fault's finding is the answer's cause."""
    named: bool
    """Whether it is the cause, or stands beside it with its place."""
    where: str
    how: str
    patch: bool = False
    no_patch: str = ""
    """Why none is offered."""
    applied: bool = False
    promised_ms: float = 0.0
    won_ms: float | None = None
    gone: bool | None = None
    """Whether the finding is not raised in the runs of the mended script; None: not run."""
    note: str = ""

    @property
    def share(self) -> float | None:
        """Won of promised."""
        if self.won_ms is None or not self.promised_ms:
            return None
        return self.won_ms / self.promised_ms

    @property
    def kept(self) -> bool | None:
        """Whether the patch does what was promised; None where it was not run."""
        if self.share is not None:
            return self.share >= ENOUGH
        return self.gone


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-k", default="", help="only the cases whose label has this word in it")
    parser.add_argument("--folder", type=Path, help="where runs are kept and found again")
    parser.add_argument("--asked-only", action="store_true", help="run no mended script")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    # a shell ignores it for what it starts in the background; hung runs are ended by it
    signal.signal(signal.SIGINT, signal.default_int_handler)
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for case in cases():
            if options.k in case.label and not missing(case):
                folder = (options.folder or Path(scratch)) / case.label.replace("/", "-")
                rows.append(asked(case, folder, not options.asked_only))
                print(rows[-1], file=sys.stderr, flush=True)
    figures = judged(rows)
    print(json.dumps({"bench": "patches", **figures}))
    if options.write:
        PAGE.write_text(page(rows, figures), encoding="utf-8")


def asked(case: Case, folder: Path, mend: bool) -> Row:
    """Run the fault, ask, mend a copy of the script, run both in turns."""
    folder.mkdir(parents=True, exist_ok=True)
    record = recorded(case, folder)
    if record is None:
        return Row(case.label, case.id, False, False, "", "", note="no record")
    text = fitted(verdict(str(record.path), baseline_of(case, folder)))
    assert len(text.encode()) <= LIMIT_BYTES
    answer = json.loads(text)
    row = row_of(case, answer)
    if not row.first and row.named:  # a busy machine's own finding stands before it
        answer = json.loads(fitted(explain_finding(case.id, str(record.path))))
    patch = answer.get("patch", "")
    row.no_patch = answer.get("no_patch", "")
    row.patch = bool(patch)
    if patch:
        row.applied = applied(folder, patch)
    if row.applied and mend:
        compare(row, case, folder)
    return row


def row_of(case: Case, answer: dict) -> Row:
    """What the answer says of the fault."""
    first = answer.get("finding") == case.id
    beside = [one for one in answer.get("other_findings", ()) if one.split()[0] == case.id]
    where = answer.get("where", "") if first else "".join(beside[:1]).rpartition(" at ")[2]
    return Row(
        label=case.label,
        finding=case.id,
        first=first,
        named=first or bool(beside),
        where=where,
        how=answer.get("where_is", "") if first else f"beside {answer.get('finding')}",
        promised_ms=(answer.get("wins_ms_per_step") or 0.0) if first else 0.0,
    )


def recorded(case: Case, folder: Path) -> RunRecord | None:
    """The run of the case in the folder, with the scripts that lie there."""
    if not (folder / "scripts").exists():
        shutil.copytree(ROOT / "tests" / "faults" / "scripts", folder / "scripts")
    if not (folder / "done").exists():
        shutil.rmtree(folder / "run", ignore_errors=True)
        faults_support.SCRIPTS = folder / "scripts"
        with contextlib.suppress(subprocess.TimeoutExpired, RecordError):
            run(folder, case.script, LONGEST_S, until=case.until, **case.environment)
        (folder / "done").touch()
    try:
        return RunRecord.open(folder / "run")
    except RecordError:
        return None


def baseline_of(case: Case, folder: Path) -> str:
    """The run without the fault, where the finding needs one to compare with."""
    place = folder / "baseline"
    if not case.baseline:
        return ""
    if not (place / "done").exists():
        place.mkdir()
        run(place, case.script, LONGEST_S)
        (place / "done").touch()
    return str(place / "run")


def compare(row: Row, case: Case, folder: Path) -> None:
    """Run the script as it was and the mended one in turns: what is won is the median difference of
    mean steps between runs that follow each other, what was promised the median of the finding's
    promises in the runs as it was; both without waits for a core, which other programs cause.
    """
    means: list[tuple[str, float]] = []
    promised: list[float] = []
    raised: list[bool] = []
    for turn in range(2 * TURNS):
        name = "before" if turn % 2 else "after"
        place = folder / f"{name}-{turn // 2}"
        place.mkdir(exist_ok=True)
        if not (place / "scripts").exists():
            source = folder / ("scripts" if turn % 2 else "mended/scripts")
            shutil.copytree(source, place / "scripts")
        record = recorded(case, place)
        if record is None:
            row.note = f"{name}: no record"
            return
        share = own_share(record, case)
        of_ranks = means_of(record, STARTED_OF.get(case.id, STARTED))
        means.append((name, share * max(of_ranks.values(), default=float("nan"))))
        findings = [finding for finding in evaluate(record) if finding.id == case.id]
        if name == "after":
            raised.append(any(finding.severity in case.severity for finding in findings))
        promised += [
            share * (f.recoverable_ms_per_step or 0.0) for f in findings if name == "before"
        ]
    signs = {"before": 1.0, "after": -1.0}
    pairs = itertools.pairwise(means)
    row.won_ms = float(np.median([signs[a[0]] * a[1] + signs[b[0]] * b[1] for a, b in pairs]))
    row.promised_ms = float(np.median(promised)) if promised else row.promised_ms
    row.gone = sum(raised) < len(raised) / 2


def own_share(record: RunRecord, case: Case) -> float:
    """Part of the time that the slowest rank's training thread did not wait for a core; 1 where
    such waits are what the finding is about.
    """
    view = RunView(record)
    rank = slowest(record)
    queue = run_queue(view, rank) if rank in view.per_rank else None
    return 1.0 if case.id in OF_CORES or queue is None else 1.0 - queue.value


def slowest(record: RunRecord) -> int:
    """The rank with the longest steps."""
    means = means_of(record, STARTED)
    return max(means, key=lambda rank: means[rank], default=0)


def means_of(record: RunRecord, started: int) -> dict[int, float]:
    """Mean step of each rank after the start, with all that happens between steps, in
    milliseconds.
    """
    means = {}
    for rank in record.ranks():
        rows = record.steps(rank)
        rows = rows[rows["step"] > started]
        if len(rows):
            means[rank] = float(rows["wall_ns"].sum() / rows["n_steps"].sum()) / 1e6
    return means


def applied(folder: Path, patch: str) -> bool:
    """Whether ``git apply`` takes the patch in a copy of where the run was started."""
    mended = folder / "mended"
    shutil.rmtree(mended, ignore_errors=True)
    shutil.copytree(folder / "scripts", mended / "scripts")
    done = subprocess.run(
        ["git", "apply"],
        input=patch.encode(),
        cwd=mended,
        capture_output=True,
        env={**os.environ, "GIT_CEILING_DIRECTORIES": str(folder)},
        check=False,
    )
    return done.returncode == 0


def judged(rows: list[Row]) -> dict[str, object]:
    """Counts, and the share of mended scripts that win enough."""
    compared = [row for row in rows if row.kept is not None]
    return {
        "faults": len(rows),
        "named_first": sum(row.first for row in rows),
        "named": sum(row.named for row in rows),
        "with_a_line": sum(bool(row.where) for row in rows),
        "patches": sum(row.patch for row in rows),
        "applied": sum(row.applied for row in rows),
        "compared": len(compared),
        "promise_kept": sum(bool(row.kept) for row in compared),
    }


def page(rows: list[Row], figures: dict[str, object]) -> str:
    """The table as Markdown."""
    lines = [
        "# What an agent is told of each injected fault",
        "",
        "Made by `python bench/patches.py --write`: each fault of the suite is run and one call of "
        "`verdict` is asked. `first`: the fault",
        "is the answer's cause; `beside it`: it is listed with its place "
        "beside another cause. On a machine that other programs keep busy",
        "that other cause is often IN04, which is then true. A patch that is offered goes through "
        f"`git apply`, and the script as it was and the mended one are run in turns, {TURNS} times "
        "each: what is won is the",
        "median difference of the mean steps of runs that follow each other, what was promised the "
        "median of the finding's promises in the",
        "runs as it was, both without the time in which the training's thread waited for a core. "
        "Where a finding promises no time, the question is whether it is raised in "
        "the mended runs.",
        "",
        ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in figures.items()),
        "",
        "| fault | named | where | how it is known | patch | promised, ms a step | won |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        named = "first" if row.first else "beside it" if row.named else "**no**"
        promised = f"{row.promised_ms:.1f}" if row.promised_ms else "-"
        cells = (row.label, named, row.where, row.how, _patch(row), promised, _won(row))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _patch(row: Row) -> str:
    if not row.patch:
        return f"no: {row.no_patch}" if row.no_patch else "no"
    return "taken" if row.applied else "**refused**"


def _won(row: Row) -> str:
    if row.kept is None:
        return "-"
    if row.share is not None:
        return f"{row.won_ms:.1f}, {100 * row.share:.0f} %"
    return "the finding is gone" if row.gone else "**the finding is still there**"


if __name__ == "__main__":
    main()
