"""What ``gputop run --layers`` costs on average: ``python bench/layers_cost.py [MODEL ...]``, one
JSON line each.

In one process short windows of steps alternate in random order: with nothing of the layers in, and
with one step in which every module is watched. Compared is CPU time of the thread, since a core
that was taken away is no cost of ours. Between such steps a listener runs at each step's end, which
is timed alone: it is too short to be seen in a step. At the default rate there are four looks early
and then one in ``PERIOD_NS``, or less often where a look costs more than ``COST_SHARE`` of that:
the average follows. Intervals are of the median, 95 %, by order statistics.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "bench")]
MODELS = ("gpt", "cnn", "moe")
ROUNDS = 80
STEPS = 5
_FAR = 1_000_000
_CALLS = 20_000
_LIMIT = 1.005


def main(names: list[str]) -> None:
    """Every model, or those that are named."""
    from agent_support import run_script

    for name in names or MODELS:
        done = run_script([__file__, "--train", name], timeout=500, OMP_NUM_THREADS="1")
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        print(lines[-1] if lines else json.dumps({"model": name, "error": done.stderr[-400:]}))


def train(name: str) -> None:
    """One training, whose windows are switched from inside."""
    import torch
    from layer_models import build

    torch.set_num_threads(1)
    model, loss_of = build(name)
    optimizer = torch.optim.AdamW(
        [weight for weight in model.parameters() if weight.requires_grad], 1e-4
    )

    def step() -> None:
        loss_of(model).backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(110):  # the guest looks closely at gradients up to step 100
        step()
    print(json.dumps({"model": name, **measured(step)}))


def measured(step) -> dict[str, object]:
    """Cost of a look, of the listener between looks, and of both on average at the default rate."""
    layers = sys.modules["gputop_agent.watchers.layers.layers"]
    rng = random.Random(1)
    seen = _count_looks(layers)
    off, looked = [], []
    for _ in range(ROUNDS):
        window_s = {}
        for look in rng.sample([False, True], 2):
            _switch(layers, look)
            step()
            began = time.thread_time()
            for _ in range(STEPS):
                step()
            window_s[look] = time.thread_time() - began
        off.append(window_s[False] / STEPS)
        looked.append(window_s[True] - window_s[False])
    step_s = statistics.median(off)
    listener_s = _listener_s(layers)
    look_s = _interval(looked)
    average = [1 + listener_s / step_s + _share(cost, layers) for cost in look_s]
    return {
        "step_ms": round(1e3 * step_s, 2),
        "look_ms": [round(1e3 * cost, 2) for cost in look_s],
        "listener_us": round(1e6 * listener_s, 2),
        "average": [round(factor, 5) for factor in average],
        "holds": average[2] <= _LIMIT,
        "looks": len(seen),
        "rounds": ROUNDS,
    }


def _switch(layers, look: bool) -> None:
    watch = layers.watch
    watch.asked = int(look)
    watch.wants_flops, watch.early, watch.due = False, [], -1
    layers._next_due = lambda upcoming: upcoming + 2
    if look:
        layers._listen()
    else:
        layers._stop_listening()


def _count_looks(layers) -> list[int]:
    seen: list[int] = []
    send_times = layers._send_times

    def counted(step, look, self_ns):
        seen.append(step)
        send_times(step, look, self_ns)

    layers._send_times = counted
    return seen


def _listener_s(layers) -> float:
    """Seconds that the listener takes at the end of a step that no look is near."""
    watch = layers.watch
    watch.is_on, watch.asked, watch.due = True, 0, _FAR * _FAR
    began = time.thread_time()
    for number in range(_CALLS):
        layers.on_step_closed(number, time.monotonic_ns())
    return (time.thread_time() - began) / _CALLS


def _share(look_s: float, layers) -> float:
    """Of the time, by one look in each period."""
    period_s = max(layers.PERIOD_NS / 1e9, look_s / layers.COST_SHARE)
    return look_s / period_s


def _interval(values: list[float]) -> tuple[float, float, float]:
    """Least, median, most."""
    ordered = sorted(values)
    half = 0.98 * len(ordered) ** 0.5
    middle = (len(ordered) - 1) / 2
    least, most = max(0, int(middle - half)), min(len(ordered) - 1, round(middle + half + 0.5))
    return ordered[least], statistics.median(ordered), ordered[most]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--train"]:
        train(sys.argv[2])
    else:
        main(sys.argv[1:])
