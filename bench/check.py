"""How often `gputop check` is wrong: pairs of identical commands, and of one with a slowdown.

    python bench/check.py --pairs 100 --slowdown 5 --time 120

Prints a line a pair and the counts at the end: false alarms among identical ones, slowdowns that
were found.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

WORK = """
import sys, torch
torch.set_num_threads(1)
repeats = 1000 + 10 * {percent}
data, model = torch.randn(96, 96), torch.nn.Linear(96, 96)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
while True:
    found = model(data)
    with torch.no_grad():
        for _ in range(repeats // 10):
            data @ data
    found.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=100)
    parser.add_argument("--slowdown", type=int, default=5, help="percent")
    parser.add_argument("--threshold", default="3%")
    parser.add_argument("--time", default="120")
    options = parser.parse_args()
    counts: dict[tuple[int, str], int] = {}
    for _ in range(options.pairs):
        for percent in (0, options.slowdown):
            began = time.monotonic()
            found = judged(percent, options)
            verdict = found["verdict"]
            counts[percent, verdict] = counts.get((percent, verdict), 0) + 1
            print(
                percent,
                verdict,
                found["change"],
                found["interval"],
                f"{time.monotonic() - began:.0f} s",
                flush=True,
            )
    for (percent, verdict), count in sorted(counts.items()):
        print(f"{percent} % slower: {verdict} {count} of {options.pairs}")


def judged(percent: int, options: argparse.Namespace) -> dict:
    """Result of one check; the baseline lies in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        base, head = Path(folder, "base"), Path(folder, "head")
        for place, slower in ((base, 0), (head, percent)):
            place.mkdir()
            (place / "work.py").write_text(WORK.format(percent=slower))
        words = ["--baseline", str(base), "--threshold", options.threshold, "--time", options.time]
        result = Path(folder, "result.json")
        subprocess.run(
            [
                sys.executable,
                "-m",
                "gputop",
                "check",
                *words,
                "--json",
                str(result),
                "--",
                sys.executable,
                "work.py",
            ],
            cwd=head,
            stdout=subprocess.DEVNULL,
            check=False,
        )
        return json.loads(result.read_text())


if __name__ == "__main__":
    main()
