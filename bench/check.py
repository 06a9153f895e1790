"""How often `gputop check` is wrong: pairs of identical commands, and pairs of which one is slower.

    python bench/check.py --identical 100 --slower 100 --jobs 2 --rows rows.jsonl

A line of JSON a pair goes to ``--rows``, to which a later call adds; the counts at the end are of
all lines there. The slower command does more of the same work in each step: 105 micro-batches in
place of 100 are 5 %.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

WORK = """
import torch
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(128, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
data = torch.randn(64, 128)
optimizer = torch.optim.SGD(model.parameters(), 1e-6)
while True:
    for _ in range({micro_batches}):
        model(data).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
MICRO_BATCHES = 100


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--identical", type=int, default=0, help="pairs of identical commands")
    parser.add_argument("--slower", type=int, default=0, help="pairs with a slower one")
    parser.add_argument("--percent", type=int, default=5, help="a multiple of 5")
    parser.add_argument("--threshold", default="3%")
    parser.add_argument("--time", default="120")
    parser.add_argument("--jobs", type=int, default=1, help="pairs at once")
    parser.add_argument("--rows", type=Path, required=True)
    options = parser.parse_args()
    wanted = [0] * options.identical + [options.percent] * options.slower
    random.Random(0).shuffle(wanted)
    with ThreadPoolExecutor(options.jobs) as pool:
        for row in pool.map(lambda percent: judged(percent, options), wanted):
            with options.rows.open("a") as file:
                print(json.dumps(row), file=file)
    print(summary([json.loads(line) for line in options.rows.read_text().splitlines()]))


def judged(percent: int, options: argparse.Namespace) -> dict:
    """Result of one check; the baseline lies in a folder of its own."""
    load, began = os.getloadavg()[0], time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        base, head = Path(folder, "base"), Path(folder, "head")
        for place, slower in ((base, 0), (head, percent)):
            place.mkdir()
            count = MICRO_BATCHES * (100 + slower) // 100
            (place / "work.py").write_text(WORK.format(micro_batches=count))
        result = Path(folder, "result.json")
        words = ["--baseline", str(base), "--threshold", options.threshold, "--time", options.time]
        words += ["--json", str(result), "--", sys.executable, "work.py"]
        done = subprocess.run(
            [sys.executable, "-m", "gputop", "check", *words],
            cwd=head,
            capture_output=True,
            text=True,
            check=False,
        )
        row = json.loads(result.read_text()) if result.exists() else {"error": done.stderr[-300:]}
    row = {name: value for name, value in row.items() if name not in ("command", "cwd")}
    return {"percent": percent, "s": round(time.monotonic() - began), "load": load, **row}


def summary(rows: list[dict]) -> str:
    """Counts of verdicts, and how long they took."""
    lines = []
    for percent in sorted({row["percent"] for row in rows}):
        some = [row for row in rows if row["percent"] == percent]
        verdicts = Counter(row.get("verdict", "error") for row in some)
        seconds = sorted(row["s"] for row in some)
        loads = sorted(row["load"] for row in some)
        lines.append(
            f"{percent} % slower: {len(some)} pairs, {dict(verdicts)}; "
            f"{seconds[len(seconds) // 2]} s in the median, {seconds[-1]} s at most, "
            f"load {loads[0]:.0f} to {loads[-1]:.0f}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
