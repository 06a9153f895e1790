"""Device time of a GPT's layers by gputop against the kernels that torch.profiler saw of them, on
one GPU: ``python bench/gpu_layers.py FOLDER``, one JSON line.

A kernel is of the layer in whose call it was launched; one of the backward, of the layer of the
forward operation that has its node's sequence number. gputop times what lies between two events on
the stream, so that the two agree where the device never waits for the host: the model is wide.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import layers

WIDTH, DEPTH, ROWS, LENGTH = 1024, 6, 8, 512
_NODE = "autograd::engine::evaluate_function"


def main(words: list[str]) -> None:
    """Run the training under gputop, and compare."""
    folder = Path(words[0])
    run_dir, reference = folder / "run", folder / "reference.json"
    command = [sys.executable, "-m", "gputop", "run", "--headless", "--run-dir", str(run_dir)]
    train_ = [sys.executable, __file__, "--train", str(run_dir), str(reference)]
    done = subprocess.run([*command, "--", *train_], capture_output=True, text=True, timeout=100)
    if not reference.exists():
        print(json.dumps({"error": (done.stdout + done.stderr)[-800:]}))
        return
    (folder / "output.txt").write_text(done.stdout + done.stderr)
    print(json.dumps(layers.compare(run_dir, json.loads(reference.read_text()))))


def train(run_dir: str, reference: str) -> None:
    """The training."""
    import torch
    from layer_models import Gpt

    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = True
    model = Gpt(DEPTH, WIDTH).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    tokens = torch.randint(0, 100, (ROWS, LENGTH), device="cuda")

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            out = model(tokens)
        out.float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(12):
        step()
    layers.ranges(model)
    activity = torch.profiler.ProfilerActivity
    times = layers.watch(run_dir, step, device_times, [activity.CPU, activity.CUDA])
    torch.cuda.synchronize()
    Path(reference).write_text(json.dumps(times))


def device_times(events: Any) -> dict[str, float]:
    """Milliseconds of the kernels of each layer without the layers within."""
    launching = [event for event in events if event.kernels]
    spans = [event for event in events if event.name.startswith("layer:")]
    nodes = [event for event in events if event.name.startswith(_NODE)]
    forward_end = min((node.time_range.start for node in nodes), default=float("inf"))
    by_sequence: dict[int, str] = {}
    for event in events:
        if event.sequence_nr >= 0 and event.scope != 1 and event.time_range.start < forward_end:
            span = innermost(event, spans)
            if span is not None:
                by_sequence[event.sequence_nr] = span.name.partition(":")[2]
    times: dict[str, float] = {span.name.partition(":")[2]: 0.0 for span in spans}
    times.pop(layers.HOOKS, None)
    for event in launching:
        node, span = innermost(event, nodes), innermost(event, spans)
        if node is not None:
            path = by_sequence.get(node.sequence_nr)
        else:
            path = None if span is None else span.name.partition(":")[2]
        if path not in (None, layers.HOOKS):
            spent_us = sum(kernel.duration for kernel in event.kernels)
            times[path] = times.get(path, 0.0) + spent_us / 1e3
    return times


def innermost(event: Any, around: list[Any]) -> Any:
    """The shortest of the ranges on its thread that hold an event; None: none does."""
    start, end = event.time_range.start, event.time_range.end
    holders = [
        span
        for span in around
        if span.thread == event.thread
        and span.time_range.start <= start
        and end <= span.time_range.end
    ]
    return min(holders, key=lambda span: span.time_range.elapsed_us(), default=None)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--train"]:
        train(*sys.argv[2:])
    else:
        main(sys.argv[1:])
