"""What the live screen costs at 200x50: CPU, bytes to the terminal, memory. One JSON line.

A writer appends steps to a record as a recorder would, 8 ranks at 20 steps a second or what the
options say (the budget's large run: ``--ranks 1024 --steps-per-s 1``), while the app follows it in
a real pseudo-terminal; then the writer rests and the idle cost is measured on the ended run.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from pathlib import Path

from pty_probe import start

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
SECONDS, SETTLE_S = 20.0, 8.0
"""Measured, and left out before: what comes first is read and drawn once."""
STEPS = 400
"""Of each rank in the record, before the app starts."""
BUDGET = {"cpu_pct": 5, "kb_per_s": 100, "rss_mb": 80, "idle_cpu_pct": 0.5}
MANY_RANKS, MANY_RANKS_CPU_PCT = 1024, 8
APP = """
import pathlib, sys
from gputop.app import Source, run_app
run_app(Source(pathlib.Path(sys.argv[1]), "live"))
"""


def _grow(folder: Path, stop: threading.Event, ranks: int, steps_per_s: int) -> None:
    from tui_support import STEP_MS, step_row

    from gputop_probes.record.writer import RecordWriter

    at_once = max(steps_per_s // 4, 1)
    writer, step = RecordWriter(folder, "box"), STEPS
    while not stop.wait(at_once / steps_per_s):
        now_ns = time.time_ns()
        for rank in range(ranks):
            rows = [step_row(rank, step + i, now_ns, STEP_MS) for i in range(at_once)]
            writer.append_rank("steps", rank, b"".join(rows))
        step += at_once
    writer.close()


def main() -> None:
    """Measure the busy and the idle app."""
    from tui_support import write_run

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--steps-per-s", type=int, default=20)
    options = parser.parse_args()
    ranks = options.ranks
    with tempfile.TemporaryDirectory() as name:
        folder = write_run(
            Path(name) / "run",
            ranks=ranks,
            steps=STEPS,
            state="running",
            start_ns=time.time_ns() - 12 * 10**9,
        )
        stop = threading.Event()
        writer = threading.Thread(target=_grow, args=(folder, stop, ranks, options.steps_per_s))
        writer.start()
        probe = start([sys.executable, "-c", APP, str(folder)], 200, 50)
        probe.wait_for(b"Findings")
        longer = 4 if ranks >= MANY_RANKS else 1  # its rhythm becomes slower step by step
        probe.measure(longer * SETTLE_S)
        live = probe.measure(longer * SECONDS)
        stop.set()
        writer.join()
        probe.close()
        ended = write_run(Path(name) / "ended", ranks=ranks, steps=STEPS)
        probe = start([sys.executable, "-c", APP, str(ended)], 200, 50)
        probe.wait_for(b"Findings")
        probe.measure(SETTLE_S)
        idle = probe.measure(SECONDS)
        probe.close()
    budget = BUDGET | ({"cpu_pct": MANY_RANKS_CPU_PCT} if ranks >= MANY_RANKS else {})
    figures = {**live, "idle_cpu_pct": idle["cpu_pct"]}
    print(json.dumps({"bench": "paint", "ranks": ranks, **figures, "budget": budget}))


if __name__ == "__main__":
    main()
