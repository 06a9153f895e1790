"""A report of a run of one million steps on eight ranks: seconds and resident memory of the
command. One JSON line.

The record is really written (about 1.9 GB), so give TMPDIR room.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from big_record import write

STEPS, RANKS, ROUNDS = 1_000_000, 8, 3


def main() -> None:
    """The median of three reports; the largest resident set of any of them."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as name:
        run = Path(name) / "run"
        write(run, STEPS, RANKS)
        seconds = sorted(_report(run) for _ in range(ROUNDS))
    peak_mb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    result = {"report_s": round(seconds[ROUNDS // 2], 2), "peak_rss_mb": round(peak_mb)}
    print(
        json.dumps(
            {
                "bench": "million",
                "steps": STEPS,
                "ranks": RANKS,
                **result,
                "budget_s": 5,
                "budget_rss_mb": 500,
            }
        )
    )


def _report(run: Path) -> float:
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "gputop", "report", str(run)], stdout=subprocess.DEVNULL, check=True
    )
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
