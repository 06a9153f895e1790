"""How well stack samples share out a loop's time, and what they cost: plain Python between tensor
work, own clocks.

    python bench/looks.py [SECONDS]

Trains small loops under ``gputop run`` whose step holds plain Python of 0.3 to 4 ms, alone, beside
a busy Python thread and beside an idle one, or one C call of 4 to 40 ms that keeps the
interpreter's lock, and prints the share of the step by the script's clock and by the looks, and the
step time with and without gputop. One JSON line a loop.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / name) for name in ("tui_app", "analysis", "probes")]

from gputop_probes.record.reader import RunRecord  # noqa: E402

SCRIPT = """
import ctypes, json, sys, threading, time
import torch
python_ms, torch_ms = float(sys.argv[1]), float(sys.argv[2])
beside, seconds = sys.argv[3], float(sys.argv[4])
torch.set_num_threads(1)
net = torch.nn.Sequential(torch.nn.Linear(96, 96), torch.nn.ReLU(), torch.nn.Linear(96, 96))
optimizer = torch.optim.SGD(net.parameters(), 1e-4)
clock = time.perf_counter

def environment(until):
    value = 0
    while clock() < until:
        value = value * 3 % 7
    return value

def held(until):
    ctypes.PyDLL(None).usleep(int((until - clock()) * 1e6))

def busy():
    value = 0
    while True:
        value = value * 3 % 7

def idle():
    while True:
        time.sleep(0.01)

if beside == "held":
    environment = held
elif beside != "alone":
    threading.Thread(target={"busy": busy, "idle": idle}[beside], daemon=True).start()
x = torch.randn(32, 96)
spent, steps, start = 0.0, 0, clock()
while clock() < start + seconds:
    loss = net(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    until = clock() + torch_ms / 1000
    with torch.no_grad():
        while clock() < until:
            policy = x @ x.T
    begin = clock()
    environment(begin + python_ms / 1000)
    spent += clock() - begin
    steps += 1
wall = clock() - start
print(json.dumps({"share": spent / wall, "step_ms": wall / steps * 1000}))
"""
LOOPS = (
    (0.3, 3, "alone"),
    (1, 8, "alone"),
    (4, 30, "alone"),
    (1, 8, "idle"),
    (1, 8, "busy"),
    (4, 30, "held"),
    (15, 85, "held"),
    (40, 160, "held"),
)


def main() -> None:
    seconds = sys.argv[1] if len(sys.argv) > 1 else "10"
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "loop.py"
        script.write_text(SCRIPT)
        for python_ms, torch_ms, beside in LOOPS:
            words = [sys.executable, str(script), str(python_ms), str(torch_ms), beside, seconds]
            run_dir = Path(folder) / f"{python_ms}-{beside}"
            bare = _last_line(words)
            watched = _last_line(
                [
                    sys.executable,
                    "-m",
                    "gputop",
                    "run",
                    "--headless",
                    "--run-dir",
                    str(run_dir),
                    "--",
                    *words,
                ]
            )
            share, looks = _share_by_looks(RunRecord.open(run_dir))
            print(
                json.dumps(
                    {
                        "bench": "looks",
                        "python_ms": python_ms,
                        "torch_ms": torch_ms,
                        "beside": beside,
                        "share_by_clock": round(watched["share"], 3),
                        "share_by_looks": round(share, 3),
                        "looks": looks,
                        "step_ms_bare": round(bare["step_ms"], 3),
                        "step_ms_watched": round(watched["step_ms"], 3),
                    }
                ),
                flush=True,
            )


def _last_line(words: list[str]) -> dict:
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return json.loads([line for line in done.stdout.splitlines() if line.startswith("{")][-1])


def _share_by_looks(record: RunRecord) -> tuple[float, int]:
    """Part of the sampled time in ``environment``, each look weighed by its period, and the number
    of looks.
    """
    inside = everywhere = 0.0
    looks = 0
    for event in record.events("stacks"):
        for sample in event["samples"]:
            weight = sample["count"] * event["period_ms"]
            everywhere += weight
            looks += sample["count"]
            inside += weight if sample["function"] in ("environment", "held") else 0.0
    return inside / max(everywhere, 1e-9), looks


if __name__ == "__main__":
    main()
