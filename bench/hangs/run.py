"""Trainings that hang, under ``gputop run``: is the culprit named, and what it did?

    python bench/hangs/run.py record FOLDER [--every N] [--jobs N] [--hang-s S] [-k WORD ...]
    python bench/hangs/run.py judge FOLDER

``record`` runs 21 faults on the first, a middle and the last rank of 2, 4 and 8 gloo ranks, laid
out as DP, DP x TP and DP x PP, and kills every process of a run with SIGKILL once it stands still:
what is judged is what lies on the disk. ``judge`` reads the records again, without running
anything.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
LAYOUTS = ("dp", "dp_tp", "dp_pp")
WORLDS = (2, 4, 8)
EXPECTED = {
    "skip": ("skipped",),
    "other": ("other operation",),
    "shape": ("other size",),
    "order": ("other order",),
    "early": ("ended early",),
    "exit": ("ended early",),
    "sleep": ("sleeps",),
    "read": ("reads",),
    "spin": ("endless loop",),
    "kill": ("died",),
    "retry": ("handles an exception",),
    "swallow": ("swallowed an exception",),
    "stop": ("stopped",),
    "lock": ("lock",),
    "worker": ("loader",),
    "message": ("message missing",),
    "barrier": ("skipped",),
    "bucket": ("skipped",),
    "irecv": ("message missing",),
    "raise": ("raised",),
    "spawn": ("raised",),
}
"""Fault of ``train.py`` and the kinds that are right for it."""
_LIMIT_S = 240.0
_SETTLES_S = 2.5


@dataclass(frozen=True)
class Case:
    """One training."""

    fault: str
    layout: str
    world: int
    who: int

    @property
    def name(self) -> str:
        return f"{self.fault}-{self.layout}-{self.world}-{self.who}"


def cases() -> list[Case]:
    """All of them; first, middle and last rank."""
    found = []
    for fault in EXPECTED:
        for layout in LAYOUTS:
            for world in WORLDS:
                for who in sorted({0, world // 2, world - 1}):
                    sends = layout == "dp_pp" and who % 2 == 0
                    if fault not in ("message", "irecv") or sends:
                        found.append(Case(fault, layout, world, who))
    return found


def record(case: Case, folder: Path, hang_s: float) -> dict[str, Any]:
    """Run one training until it is said to hang or has ended, then kill everything."""
    run_dir = folder / case.name
    shutil.rmtree(run_dir, ignore_errors=True)
    with tempfile.TemporaryDirectory() as scratch:
        environment = {
            **os.environ,
            "FAULT": case.fault,
            "WHO": str(case.who),
            "WORLD": str(case.world),
            "LAYOUT": case.layout,
            "RENDEZVOUS": f"{scratch}/meet",
            "GPUTOP_HANG_S": str(hang_s),
            "GPUTOP_RUNS_DIR": f"{scratch}/runs",
            "OMP_NUM_THREADS": "1",
        }
        words = ["run", "--headless", "--run-dir", str(run_dir), "python", str(HERE / "train.py")]
        front = subprocess.Popen(
            [sys.executable, "-m", "gputop", *words],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        said_s = _watch(front, run_dir)
        _kill_all(run_dir, front)
    return {"name": case.name, "said_s": said_s, **asdict(case)}


def _watch(front: subprocess.Popen[bytes], run_dir: Path) -> float | None:
    """Wait for the recorder to suspect a hang and to have its answers, or for the end.

    Returns seconds from the last step to the suspicion; None where the run ended by itself.
    """
    deadline = time.monotonic() + _LIMIT_S
    while time.monotonic() < deadline and front.poll() is None:
        suspected = [one for one in _events(run_dir) if one["type"] == "hang_suspected"]
        if suspected:
            time.sleep(_SETTLES_S)
            return float(suspected[0]["silent_s"])
        time.sleep(0.3)
    return None


def _events(run_dir: Path) -> list[dict[str, Any]]:
    found = []
    for path in run_dir.glob("hosts/*/events.jsonl"):
        for line in path.read_bytes().splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:  # it is being written
                continue
    return found


def _reached(run_dir: Path) -> bool:
    """Whether a hang was suspected, or the run ended, before the bench lost patience."""
    kinds = {one["type"] for one in _events(run_dir)}
    return bool(kinds & {"hang_suspected", "run_end"})


def _kill_all(run_dir: Path, front: subprocess.Popen[bytes]) -> None:
    """SIGKILL to the recorder, the ranks and the front, in no order."""
    pids = {int(one["pid"]) for one in _events(run_dir) if one.get("pid")}
    children = subprocess.run(
        ["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True
    ).stdout.split("\n")
    parents = [tuple(map(int, line.split())) for line in children if line.strip()]
    pids.add(front.pid)
    grown = True
    while grown:
        more = {pid for pid, parent in parents if parent in pids} - pids
        pids |= more
        grown = bool(more)
    for pid in pids - {os.getpid()}:
        try:
            os.kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue
    front.wait()


def judge(folder: Path) -> int:
    """Print what is said of each record, and how often it is right."""
    from gputop_analysis.hangs.facts import cause_of
    from gputop_analysis.view import RunView
    from gputop_probes.record.reader import RunRecord

    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    reached = [row for row in rows if _reached(folder / row["name"])]
    print(f"{len(rows) - len(reached)} runs were too slow to come to their fault: left out")
    rows = reached
    right_rank, right_kind, both = 0, 0, 0
    for row in rows:
        began = time.monotonic()
        try:
            cause = cause_of(RunView(RunRecord.open(folder / row["name"])))
        except Exception as error:
            cause = None
            print(f"{row['name']}: {error!r}")
        took_s = time.monotonic() - began
        cause = cause or _raised_first(folder / row["name"])
        rank = cause is not None and cause.rank == row["who"]
        kind = cause is not None and cause.kind in EXPECTED[row["fault"]]
        right_rank, right_kind, both = right_rank + rank, right_kind + kind, both + (rank and kind)
        mark = "right" if rank and kind else "WRONG"
        said = "nothing" if cause is None else f"{cause.kind}, rank {cause.rank}: {cause.words}"
        print(f"{mark} {row['name']:<22} {row['said_s'] or 0:5.1f} s {took_s:5.2f} s  {said}")
    print(
        f"{len(rows)} runs: rank right in {right_rank}, kind in {right_kind}, both in {both} "
        f"({100 * both / max(1, len(rows)):.0f} %)"
    )
    return 0


def _raised_first(path: Path) -> Any:
    """Where ranks failed of themselves: the one that did first."""
    from gputop_analysis.hangs.cause import Cause
    from gputop_analysis.raised import fatal
    from gputop_probes.record.reader import RunRecord

    for event in fatal(RunRecord.open(path))[:1]:
        return Cause("raised", int(event["rank"]), str(event.get("message")))
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("record", "judge"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--every", type=int, default=1, help="only every n-th, in a shuffled order")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--hang-s", type=float, default=4.0)
    parser.add_argument("--seconds", type=float, default=1e9, help="begin none after so long")
    parser.add_argument("-k", nargs="*", default=[], help="only names with one of these words")
    options = parser.parse_args()
    if options.what == "judge":
        return judge(options.folder)
    options.folder.mkdir(parents=True, exist_ok=True)
    log = options.folder / "rows.jsonl"
    done = set()
    if log.exists():
        done = {json.loads(line)["name"] for line in log.read_text().splitlines()}
    chosen = cases()
    random.Random(1).shuffle(chosen)
    chosen = [one for one in chosen[:: options.every] if one.name not in done]
    if options.k:
        chosen = [one for one in chosen if any(word in one.name for word in options.k)]
    ends = time.monotonic() + options.seconds

    def work(case: Case) -> None:
        if time.monotonic() < ends:
            row = record(case, options.folder, options.hang_s)
            with log.open("a") as file:
                file.write(json.dumps(row) + "\n")

    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(work, chosen))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
