"""Holds what a finding promises against what removing the fault really wins: faulty and mended
runs, back to back.

    python bench/promises.py [-k WORD] [--times N]

Each fault of ``tests/faults/scripts`` is run with the fault and without it, in turn, N times. Won
is the difference of the mean step times over the steps after the first 20. One line a fault and a
JSON line with the figures.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / name) for name in ("tests", "tui_app", "analysis", "probes")]

from faults_support import Outcome, run  # noqa: E402

TOLERANCE = 0.25
WARM_UP = 20


@dataclass(frozen=True)
class Pair:
    """A fault, the finding that must promise something for it, and what the script is like without
    it.
    """

    id: str
    script: str
    faulty: dict[str, object]
    mended: dict[str, object] = field(default_factory=lambda: {"FAULT": "none"})


PAIRS = (
    Pair("HO06", "one.py", {"FAULT": "host_sleep"}),
    Pair("IN02", "one.py", {"FAULT": "slow_getitem"}, {"FAULT": "mended_getitem"}),
    Pair("IN01", "one.py", {"FAULT": "few_workers"}, {"FAULT": "mended_workers"}),
    Pair("HO03", "one.py", {"FAULT": "gc"}),
    Pair("HO07", "one.py", {"FAULT": "checkpoint"}),
    Pair("HO08", "one.py", {"FAULT": "eval"}),
    Pair("HO04", "one.py", {"FAULT": "gil", "STEPS": 300}),
    Pair("HO15", "host.py", {"FAULT": "periodic"}),
    Pair(
        "HO11",
        "host.py",
        {"FAULT": "foreach", "STEPS": 120},
        {"FAULT": "clean_fused", "STEPS": 120},
    ),
    Pair("CE07", "compute.py", {"FAULT": "double_backward"}),
    Pair(
        "HO12",
        "resources.py",
        {"FAULT": "page_faults", "STEPS": 100},
        {"FAULT": "none", "STEPS": 100},
    ),
    Pair("CR06", "ranks_comm.py", {"FAULT": "slow_link"}),
    Pair("CR01", "ranks.py", {"FAULT": "backward", "WORLD": 2}, {"WORLD": 2}),
    Pair("CR02", "ranks.py", {"FAULT": "forward", "WORLD": 2}, {"WORLD": 2}),
    Pair("IN11", "ranks.py", {"FAULT": "data", "WORLD": 2}, {"WORLD": 2}),
    Pair("CR04", "ranks.py", {"FAULT": "host", "WORLD": 2}, {"WORLD": 2}),
    Pair("IN06", "input.py", {"FAULT": "one_slow_worker"}),
    Pair("IN05", "input.py", {"FAULT": "epochs"}),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-k", default="", help="only pairs with this word in id, script or fault")
    parser.add_argument("--times", type=int, default=2)
    options = parser.parse_args()
    rows = []
    for pair in PAIRS:
        label = f"{pair.id} {pair.script} {pair.faulty['FAULT']}"
        if options.k in label:
            rows.append(compare(pair, options.times))
            print(f"{label}: {rows[-1]}", flush=True)
    known = [row for row in rows if row["error"] is not None]
    errors = [float(row["error"]) for row in known]  # type: ignore[arg-type]
    figures = {
        "pairs": len(rows),
        "promised": len(known),
        "within_25_percent": sum(abs(error) <= TOLERANCE for error in errors),
        "over_promised": sum(error > TOLERANCE for error in errors),
        "error_median": round(statistics.median(map(abs, errors)), 3) if errors else None,
    }
    print(json.dumps({"bench": "promises", **figures}))


def compare(pair: Pair, times: int) -> dict[str, object]:
    """Step times with and without the fault, in turn, and what was promised;
    milliseconds a step.
    """
    faulty, mended, promised = [], [], []
    for _ in range(times):
        with tempfile.TemporaryDirectory() as folder:
            outcome = run(Path(folder) / "faulty", pair.script, **pair.faulty)
            faulty.append(step_ms(outcome))
            found = [
                one for one in outcome.findings if one.id == pair.id or pair.id in one.absorbed
            ]
            promised += [
                one.recoverable_ms_per_step
                for one in found
                if one.recoverable_ms_per_step is not None
            ]
            mended.append(step_ms(run(Path(folder) / "mended", pair.script, **pair.mended)))
    won = statistics.mean(faulty) - statistics.mean(mended)
    promise = statistics.mean(promised) if promised else None
    return {
        "faulty": round(statistics.mean(faulty), 2),
        "mended": round(statistics.mean(mended), 2),
        "won": round(won, 2),
        "promised": None if promise is None else round(promise, 2),
        "error": None if promise is None else round(promise / won - 1, 3),
    }


def step_ms(outcome: Outcome) -> float:
    """Mean over ranks of the mean step time after the warm-up."""
    means = []
    for rank in outcome.record.ranks():
        rows = np.asarray(outcome.record.steps(rank))
        rows = rows[rows["step"] >= WARM_UP]
        means.append(float(rows["wall_ns"].sum()) / 1e6 / max(1, int(rows["n_steps"].sum())))
    return statistics.mean(means)


if __name__ == "__main__":
    main()
