"""How long an estimate takes, warm in process, as a command, and by a trace of an 8B model. One
JSON line.

    python bench/vram_speed.py [--no-trace]

In process: CPU time of the peak with its fits, a setup never asked about before each time. The
command: wall and CPU time of ``gputop estimate``, levers and largest micro-batch included, with
compiled modules as an installed package has them. The trace: wall time and resident memory.
"""

from __future__ import annotations

import atexit
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from statistics import median

ROUNDS = 15
COMMANDS = 5
MODEL = "llama-3.1-8b"
DEEP = "llama-3-70b"
ESTIMATE = ("-m", "gputop", "estimate", "--model", MODEL, "--seq", "4096", "--json")


def main() -> None:
    """Measure and print."""
    found: dict[str, float | str | None] = {}
    for tier in ("formula", "profile"):
        found[f"{tier}_warm_ms"] = _warm(tier)
        if found[f"{tier}_warm_ms"] is not None:
            line = (*ESTIMATE, "--tier", tier)
            found[f"{tier}_command_s"], found[f"{tier}_command_cpu_s"] = (
                _command(line),
                _cpu_s(line),
            )
    found["profile_80_layers_warm_ms"] = _warm("profile", DEEP)
    if "--no-trace" not in sys.argv:
        trace = (*ESTIMATE, "--tier", "trace")
        found["trace_s"], found["trace_peak_rss_mb"] = (
            _command(trace, 1),
            round(_resident(trace), 1),
        )
    budget = {
        "budget_warm_ms": 60,
        "budget_command_s": 0.6,
        "budget_trace_s": 15,
        "budget_trace_rss_mb": 1500,
    }
    print(
        json.dumps(
            {"bench": "vram_speed", "model": MODEL, "cpus": os.cpu_count(), **found, **budget}
        )
    )


def _warm(tier: str, model: str = MODEL) -> float | None:
    """The median over sequence lengths, ms; None where the tier does not cover the model."""
    from gputop_analysis import catalog
    from gputop_analysis.vram.question import estimate
    from gputop_analysis.vram.setup import Setup
    from gputop_analysis.vram.tiers import NotCoveredError

    setup = Setup(catalog.model(model), micro_batch=2)
    took = []
    try:
        estimate(setup.but(seq=512), tier, advice=False)
        for round_ in range(ROUNDS):
            began = time.process_time()
            estimate(setup.but(seq=1024 + 256 * round_), tier, advice=False)
            took.append(time.process_time() - began)
    except NotCoveredError:
        return None
    return round(1e3 * median(took), 2)


def _cpu_s(words: tuple[str, ...]) -> float:
    """Median CPU seconds of a Python with these arguments."""
    took = []
    for _ in range(COMMANDS + 1):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [sys.executable, *words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=_compiled(),
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        took.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return round(median(took[1:]), 3)


@cache
def _compiled() -> dict[str, str]:
    """The environment, with a folder of its own for compiled modules; the first process
    fills it.
    """
    folder = tempfile.mkdtemp(prefix="gputop-bench-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPYCACHEPREFIX": folder}


def _command(words: tuple[str, ...], rounds: int = COMMANDS) -> float:
    """Median seconds of a Python with these arguments, after a first one that fills the folder of
    compiled modules.
    """
    took = []
    for _ in range(rounds + 1):
        began = time.perf_counter()
        done = subprocess.run([sys.executable, *words], capture_output=True, env=_compiled())
        took.append(time.perf_counter() - began)
        if done.returncode:
            raise SystemExit(f"{' '.join(words)}: exit code {done.returncode}")
    return round(median(took[1:]), 3)


def _resident(words: tuple[str, ...]) -> float:
    """MB resident of a Python with these arguments and what it starts, at the most."""
    quiet = subprocess.DEVNULL
    return _watch(
        subprocess.Popen([sys.executable, *words], stdout=quiet, stderr=quiet, env=_compiled())
    )


def _watch(process: subprocess.Popen[bytes]) -> float:
    """Wait for a process; MB resident of it and its children at the most."""
    most = 0.0
    while process.poll() is None:
        most = max(most, sum(_resident_mb(pid) for pid in (process.pid, *_children(process.pid))))
        time.sleep(0.01)
    return most


def _children(pid: int) -> list[int]:
    try:
        return [
            int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        ]
    except OSError:
        return []


def _resident_mb(pid: int) -> float:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


if __name__ == "__main__":
    main()
