"""Starting gputop as a user would, and reading what it left."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
GPUTOP = [sys.executable, "-m", "gputop"]
WORKING = re.compile(r"^gputop: [^\n]+ \.\.\.\n", re.MULTILINE)
"""A line of ``gputop.cli.working``."""


def environment(tmp_path: Path, **extra: str) -> dict[str, str]:
    """The environment of a user whose runs directory is ours."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("GPUTOP_")}
    return {**kept, "GPUTOP_RUNS_DIR": str(tmp_path / "runs"), "OMP_NUM_THREADS": "1", **extra}


def gputop(
    *words: str, tmp_path: Path, timeout: float = 120, **options
) -> subprocess.CompletedProcess[str]:
    """Run ``gputop WORDS`` without a terminal and wait for it. What a command says after a second
    of silence is left out of ``stderr``: it depends on the machine.
    """
    done = subprocess.run(
        [*GPUTOP, *words],
        capture_output=True,
        text=True,
        timeout=timeout,
        stdin=subprocess.DEVNULL,
        env=environment(tmp_path, **options.pop("env", {})),
        cwd=options.pop("cwd", tmp_path),
        check=False,
        **options,
    )
    if done.stderr:
        done.stderr = WORKING.sub("", done.stderr)
    return done


def training(steps: int = 60, body: str = "") -> str:
    """A real training script, never compiled, of ``steps`` steps of about 5 ms.

    ``body`` runs inside each, ``i`` is its index.
    """
    return f"""
import sys, time, eager, torch
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
data = torch.utils.data.DataLoader([(torch.randn(32),) for _ in range(8 * {steps})], batch_size=8)
for i, (x,) in enumerate(data):
    loss = model(x).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.004)
    {body}
print("trained", i + 1)
print("narrated", file=sys.stderr)
"""
