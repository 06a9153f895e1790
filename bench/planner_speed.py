"""How fast the planner is: configurations a second, a plan for 1024 GPUs (CPU time of one process,
best of five), and how long the strategy screen takes to answer a key (wall clock,
``strategy_keys.py``).

python bench/planner_speed.py
"""

from __future__ import annotations

import json
import time

import strategy_keys

from gputop_analysis.catalog import model
from gputop_analysis.planner import search
from gputop_analysis.planner.hardware import cluster
from gputop_analysis.planner.job import Job
from gputop_analysis.planner.space import Limits

ROUNDS = 5


def main() -> int:
    """Prints one JSON line."""
    large = Job(model("llama-3-70b"), seq=8192, global_batch=1024)
    wide = Limits(cp=(1, 2, 4, 8, 16), zero=(0, 1, 2, 3), most_vpp=20)
    configurations, per_plan = _plan(large, 1024, wide)
    _, narrow_s = _plan(large, 1024, None)
    _, one_s = _plan(
        large, 1024, Limits(tp=(8,), pp=(8,), vpp=(1,), micro_batch=(1,), zero=(1,), recompute=(1,))
    )
    print(
        json.dumps(
            {
                "bench": "planner_speed",
                "configurations": configurations,
                "configurations_per_s": round(configurations / per_plan),
                "plan_1024_gpus_s": round(narrow_s, 3),
                "plan_1024_gpus_wide_s": round(per_plan, 3),
                "one_configuration_ms": round(1e3 * one_s, 2),
                **strategy_keys.measure(),
            }
        )
    )
    return 0


def _plan(job: Job, gpus: int, limits: Limits | None) -> tuple[int, float]:
    """Configurations predicted, time and memory, and the CPU seconds it took."""
    place = cluster("H100", gpus)
    took, count = [], 0
    for _ in range(ROUNDS):
        start = time.process_time()
        count = len(search.plan(job, place, limits).layouts)
        took.append(time.process_time() - start)
    return count, min(took)


if __name__ == "__main__":
    raise SystemExit(main())
