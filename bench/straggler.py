"""How often the straggler rule names a rank of a clean run, and how often it finds a slow one. One
JSON line.

Simulated synchronous runs: each rank's step takes 100 ms with autocorrelated noise, and waits for
the slowest one.
"""

from __future__ import annotations

import json
import math
import sys
import time
from typing import Any

import numpy as np
import numpy.typing as npt

from gputop_analysis.culprit import find_culprit

Array = npt.NDArray[Any]

STEP_MS, NOISE, SLOWER = 100.0, 0.03, 0.05
AUTOCORRELATIONS = (0.0, 0.9, 0.98)
CHUNK = 50


def drifting(random: np.random.Generator, runs: int, steps: int, ranks: int, rho: float) -> Array:
    """Runs x steps x ranks of AR(1) noise with mean 0 and variance 1."""
    noise = random.standard_normal((runs, steps, ranks))
    for step in range(1, steps):
        noise[:, step] = rho * noise[:, step - 1] + math.sqrt(1 - rho**2) * noise[:, step]
    return noise


def named(
    runs: int, steps: int, ranks: int, rho: float, *, noise: float = NOISE, slower: float = 0.0
) -> float:
    """Share of runs in which a rank is named; with ``slower``, in which the slow one is."""
    random = np.random.default_rng(
        [runs, steps, ranks, int(100 * rho), int(100 * noise), slower > 0]
    )
    slow, hits = ranks // 2, 0
    for done in range(0, runs, CHUNK):
        own = STEP_MS * (1 + noise * drifting(random, min(CHUNK, runs - done), steps, ranks, rho))
        own[:, :, slow] += STEP_MS * slower
        for one in own:
            slowest = one.max(axis=1, keepdims=True)
            found = find_culprit(slowest - one, float(slowest.mean()))
            hits += found is not None and (not slower or found.column == slow)
    return hits / runs


def main(runs: int) -> None:
    """Print the figures of ``runs`` runs each; the grid of few steps and ranks has a
    third of that.
    """
    started = time.monotonic()
    grid = [
        (s, r, rho, n)
        for s in (30, 60, 200, 1000)
        for r in (2, 4, 8)
        for rho in AUTOCORRELATIONS
        for n in (3, 10)
    ]
    few = {
        f"{s}x{r}_rho{rho}_sd{n}%": round(named(runs // 3, s, r, rho, noise=n / 100), 4)
        for s, r, rho, n in grid
    }
    result = {
        "bench": "straggler",
        "runs": runs,
        "steps": 1000,
        "ranks": 8,
        "noise": NOISE,
        "false_alarms": {rho: named(runs, 1000, 8, rho) for rho in AUTOCORRELATIONS},
        "power_5_percent_slow": {
            rho: named(runs, 1000, 8, rho, slower=SLOWER) for rho in AUTOCORRELATIONS
        },
        "power_by_ranks_rho_0.98": {
            r: named(runs // 3, 1000, r, 0.98, slower=SLOWER) for r in (2, 4)
        },
        "power_by_ranks_rho_0.9": {
            r: named(runs // 3, 1000, r, 0.9, slower=SLOWER) for r in (2, 4)
        },
        "few_steps_false_alarms_worst": dict(sorted(few.items(), key=lambda item: -item[1])[:6]),
        "few_steps_false_alarms_mean": round(float(np.mean(list(few.values()))), 4),
        "budget_false_alarms": 0.01,
        "budget_power": 0.95,
        "took_s": round(time.monotonic() - started, 1),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
