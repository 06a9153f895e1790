"""Thousands of damaged records through the real commands: tracebacks, hangs, memory, silent
nonsense. One JSON line.

``fuzz_records.py [COUNT] [FIRST_SEED]``; what a seed found is printed on stderr, and ``COUNT=1``
repeats it.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
LIMIT_BYTES = 2560 << 20
"""Address space of a worker: a command that wants more fails, and is counted."""
A_WORKER = 50
"""Records that one process looks at before a fresh one takes over."""


def bases(folder: Path) -> list[Path]:
    """Sound records: one rank, several with GPUs, one of a real training of two."""
    import zipfile

    from tui_support import write_run

    package = Path(__file__).parents[1] / "tui_app/gputop/recordings/demo.zip"
    with zipfile.ZipFile(package) as packed:
        packed.extractall(folder / "demo")
    real = next((folder / "demo").rglob("run.json")).parent
    alone = write_run(folder / "alone", steps=150)
    return [alone, write_run(folder / "gpus", ranks=2, steps=150, gpus=2, slow_rank=1), alone, real]


def work(runs: list[Path], folder: Path, seeds: range, report: int) -> None:
    """Damage and look, in a process of its own; a line of JSON a record."""
    from record_fuzz import damaged_copy, problems, sound_figures

    from gputop_analysis.findings import registry

    registry.STRICT = True
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT_BYTES, LIMIT_BYTES))
    sound = {run: sound_figures(run) for run in set(runs)}
    for seed in seeds:
        run = runs[seed % len(runs)]
        began = time.monotonic()
        copy, done = damaged_copy(run, folder, seed)
        found = list(problems(copy, sound[run], folder / f"page-{seed}.html", run))
        shutil.rmtree(copy, ignore_errors=True)
        (folder / f"page-{seed}.html").unlink(missing_ok=True)
        line = {"seed": seed, "done": done, "found": found, "s": round(time.monotonic() - began, 1)}
        os.write(report, json.dumps(line).encode() + b"\n")


def fresh(runs: list[Path], folder: Path, seeds: range) -> tuple[list[dict], int]:
    """What a forked worker said of these seeds, and its exit status."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(reading)
        status = 1
        try:
            work(runs, folder, seeds, writing)
            status = 0
        except Exception:
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading) as said:
        lines = [json.loads(line) for line in said]
    return lines, os.waitpid(pid, 0)[1]


def main() -> None:
    """Count over all seeds."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    totals: Counter[str] = Counter(records=0, failing=0, workers_lost=0)
    longest = 0.0
    with tempfile.TemporaryDirectory() as name:
        runs = bases(Path(name))
        for begin in range(first, first + count, A_WORKER):
            seeds = range(begin, min(begin + A_WORKER, first + count))
            lines, status = fresh(runs, Path(name), seeds)
            totals["records"] += len(lines)
            totals["workers_lost"] += status != 0
            for line in lines:
                longest = max(longest, line["s"])
                totals["failing"] += bool(line["found"])
                for found in line["found"]:
                    print(
                        f"seed {line['seed']}: {line['done']}\n    {found}",
                        file=sys.stderr,
                        flush=True,
                    )
            print(json.dumps({"so_far": totals}), file=sys.stderr, flush=True)
    print(json.dumps({"bench": "fuzz_records", **totals, "slowest_record_s": longest}))


if __name__ == "__main__":
    main()
