"""What the live screen costs at 200x50 with 8 ranks: CPU, bytes to the terminal, memory. One JSON
line.

A writer appends steps to a record as a recorder would, 8 ranks at 20 steps a second, while the app
follows it in a real pseudo-terminal; then the writer rests and the idle cost is measured on the
ended run.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import time
from pathlib import Path

from pty_probe import start

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
SECONDS = 15.0
APP = """
import pathlib, sys
from gputop.app import Source, run_app
run_app(Source(pathlib.Path(sys.argv[1]), "live"))
"""


def _grow(folder: Path, stop: threading.Event, ranks: int, steps_per_s: int) -> None:
    from tui_support import STEP_MS, step_row

    from gputop_probes.record.writer import RecordWriter

    writer, step = RecordWriter(folder, "box"), 400
    while not stop.wait(0.25):
        now_ns = time.time_ns()
        for rank in range(ranks):
            many = [step_row(rank, step + i, now_ns, STEP_MS) for i in range(steps_per_s // 4)]
            writer.append_rank("steps", rank, b"".join(many))
        step += steps_per_s // 4
    writer.close()


def main() -> None:
    """Measure the busy and the idle app."""
    from tui_support import write_run

    with tempfile.TemporaryDirectory() as name:
        folder = write_run(
            Path(name) / "run",
            ranks=8,
            steps=400,
            state="running",
            start_ns=time.time_ns() - 12 * 10**9,
        )
        stop = threading.Event()
        writer = threading.Thread(target=_grow, args=(folder, stop, 8, 20))
        writer.start()
        probe = start([sys.executable, "-c", APP, str(folder)], 200, 50)
        probe.wait_for(b"Findings")
        probe.measure(5)
        live = probe.measure(SECONDS)
        stop.set()
        writer.join()
        probe.close()
        ended = write_run(Path(name) / "ended", ranks=8, steps=400)
        probe = start([sys.executable, "-c", APP, str(ended)], 200, 50)
        probe.wait_for(b"Findings")
        probe.measure(5)
        idle = probe.measure(SECONDS)
        probe.close()
    budget = {"cpu_pct": 5, "kb_per_s": 100, "rss_mb": 80, "idle_cpu_pct": 0.5}
    print(json.dumps({"bench": "paint", **live, "idle_cpu_pct": idle["cpu_pct"], "budget": budget}))


if __name__ == "__main__":
    main()
