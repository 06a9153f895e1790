"""Milliseconds that a live tick of all findings takes, at 8 and at 1024 ranks of a run that goes
on. One JSON line.

A tick while the view is young asks every check (``all_checks_ms``), the first one half of them
(``first_tick_ms``); later, those that are settled take turns (``tick_ms``). Before each tick every
rank writes as many steps as it takes between two of them. ``--slowest`` adds the checks that take
most, on stderr.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

from big_record import STEP_NS, extend, write

from gputop_analysis.findings import CATALOGUE
from gputop_analysis.findings.live import WINDOW_STEPS, LiveFindings
from gputop_analysis.findings.turns import SETTLED_AFTER
from gputop_analysis.live_ranks import live_ranks
from gputop_analysis.view import RunView
from gputop_probes.record.reader import RunRecord

PERIOD_S = 2.0
"""Between two ticks of the live screen."""
TICKS = {8: 40, 1024: 12}
STEPS = {8: 20_000, 1024: 1_500}
BUDGET_MS = {8: 20, 1024: 100}


def main() -> None:
    """CPU time of this process: medians over the ticks, and the worst one."""
    result: dict[str, float] = {}
    for ranks, steps in STEPS.items():
        with tempfile.TemporaryDirectory() as name:
            path = Path(name) / "run"
            record = write(path, steps, ranks)
            live, young, settled = LiveFindings(record), list[float](), list[float]()
            for tick in range(SETTLED_AFTER + TICKS[ranks]):
                steps = extend(path, steps, int(PERIOD_S * 1e9 / STEP_NS), ranks)
                record.refresh()
                (young if tick < SETTLED_AFTER else settled).append(_timed(live))
            result[f"tick_ms_{ranks}_ranks"] = round(statistics.median(settled), 1)
            result[f"worst_tick_ms_{ranks}_ranks"] = round(max(settled), 1)
            result[f"all_checks_ms_{ranks}_ranks"] = round(statistics.median(young[1:]), 1)
            result[f"first_tick_ms_{ranks}_ranks"] = round(young[0], 1)
            result[f"worst_young_tick_ms_{ranks}_ranks"] = round(max(young), 1)
            result[f"budget_ms_{ranks}_ranks"] = BUDGET_MS[ranks]
            if "--slowest" in sys.argv:
                _slowest(record, ranks)
    print(json.dumps({"bench": "live_findings", "findings": len(CATALOGUE), **result}))


def _timed(live: LiveFindings) -> float:
    began = time.process_time()
    live.tick()
    return 1e3 * (time.process_time() - began)


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
