"""Milliseconds that one live evaluation of all findings takes, at 8 and at 1024 ranks. One JSON line.

``--slowest`` adds the checks that take most, on stderr.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

from big_record import write

from gputop_analysis.findings import CATALOGUE
from gputop_analysis.findings.live import WINDOW_STEPS, LiveFindings
from gputop_analysis.live_ranks import live_ranks
from gputop_analysis.view import RunView
from gputop_probes.record.reader import RunRecord

TICKS = 15
STEPS = {8: 20_000, 1024: 1_500}
BUDGET_MS = {8: 20, 1024: 100}


def main() -> None:
    """The median over the ticks, the first (cold) one apart."""
    result: dict[str, float] = {}
    for ranks, steps in STEPS.items():
        with tempfile.TemporaryDirectory() as name:
            record = write(Path(name) / "run", steps, ranks)
            live = LiveFindings(record)
            began, times = time.process_time(), [_timed(live) for _ in range(TICKS)]
            result[f"tick_cpu_ms_{ranks}_ranks"] = round(1e3 * (time.process_time() - began) / TICKS, 1)
            result[f"tick_ms_{ranks}_ranks"] = round(statistics.median(times[1:]), 1)
            result[f"first_tick_ms_{ranks}_ranks"] = round(times[0], 1)
            result[f"budget_ms_{ranks}_ranks"] = BUDGET_MS[ranks]
            if "--slowest" in sys.argv:
                _slowest(record, ranks)
    print(json.dumps({"bench": "live_findings", "findings": len(CATALOGUE), **result}))


def _timed(live: LiveFindings) -> float:
    began = time.perf_counter()
    live.tick()
    return 1e3 * (time.perf_counter() - began)


def _slowest(record: RunRecord, ranks: int) -> None:
    began = time.perf_counter()
    view = RunView(record, WINDOW_STEPS, live=True, ranks=live_ranks(record))
    costs = {"the view": 1e3 * (time.perf_counter() - began)}
    for id, spec in CATALOGUE.items():
        began = time.perf_counter()
        found = spec.check(view)
        if found is not None and not hasattr(found, "id"):
            list(found)
        costs[id] = 1e3 * (time.perf_counter() - began)
    for name, ms in sorted(costs.items(), key=lambda item: -item[1])[:25]:
        print(f"{ranks:5} ranks  {name:<9} {ms:8.2f} ms", file=sys.stderr)


if __name__ == "__main__":
    main()
