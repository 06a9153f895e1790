"""A small training on one GPU, with one fault or none; ends with a line of JSON that says what it
measured itself.
"""

from __future__ import annotations

import argparse
import json
import time

FAULTS = {
    "waits-for-data": "IN01",
    "pageable-copies": "IN08",
    "tiny-kernels": "HO01",
    "reads-every-loss": "HO02",
    "host-code": "HO06",
    "slow-optimizer": "HO11",
    "anomaly-mode": "HO16",
    "no-tf32": "CE02",
    "untuned-convolutions": "CE09",
    "keeps-graphs": "ME02",
    "empties-cache": "ME04",
    "nan": "NU01",
    "out-of-memory": "HC04",
}
"""The finding that each is to be told by."""
TUNED = "tuned-convolutions"
"""The clean twin of the fault whose model is another one; that of the others has no fault at all."""
PHASES = ("forward", "backward", "optimizer")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=[*FAULTS, TUNED], default=None)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--snapshot", default="")
    parser.add_argument("--trace", default="")
    options = parser.parse_args()

    import torch

    torch.manual_seed(0)
    if options.snapshot:
        torch.cuda.memory._record_memory_history(max_entries=200_000)
    fault = options.fault
    torch.backends.cuda.matmul.allow_tf32 = fault != "no-tf32"
    torch.backends.cudnn.benchmark = fault == TUNED
    if fault == "anomaly-mode":
        torch.autograd.set_detect_anomaly(True)
    model = build(fault).cuda()
    update = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=fault != "slow-optimizer")
    print(json.dumps(train(options, model, update)), flush=True)
    if options.snapshot:
        torch.cuda.memory._dump_snapshot(options.snapshot)


def build(fault: str | None):
    from torch import nn

    if fault in ("untuned-convolutions", TUNED):
        layers = [nn.Conv2d(64, 64, 3, padding=1) for _ in range(8)]
        return nn.Sequential(
            nn.Conv2d(3, 64, 3, padding=1), *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )
    width, depth = (32, 400) if fault == "tiny-kernels" else (2048, 12)
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.GELU())]
    return nn.Sequential(*layers)


def batches(options, model):
    """Batches on the GPU."""
    import torch

    shape = (1024, next(model.parameters()).shape[-1])
    if options.fault in ("untuned-convolutions", TUNED):
        shape = (32, 3, 64, 64)
    pinned = torch.randn(shape).pin_memory()
    for _ in range(options.steps):
        if options.fault == "waits-for-data":
            time.sleep(0.05)
        if options.fault == "pageable-copies":
            yield torch.randn(16 * shape[0], shape[1]).cuda()[: shape[0]]
        else:
            yield pinned.to("cuda", non_blocking=True)


def train(options, model, update) -> dict:
    """Train; mean milliseconds of the phases by CUDA events, and of a step by the clock. The phases
    are ranges of the profiler, too.
    """
    import torch
    from torch.profiler import record_function

    kept, spans = [], []
    profiler = torch.profiler.profile() if options.trace else None
    torch.cuda.synchronize()
    began = time.perf_counter()
    for number, batch in enumerate(batches(options, model)):
        if profiler and number == options.steps // 2:
            profiler.start()
        events = [torch.cuda.Event(enable_timing=True) for _ in range(4)]
        events[0].record()
        with record_function("forward"):
            loss = model(batch).float().square().mean()
        events[1].record()
        injected(options, loss, kept, number)
        with record_function("backward"):
            (loss * float("nan") if options.fault == "nan" and number > 60 else loss).backward()
        events[2].record()
        with record_function("optimizer"):
            update.step()
            update.zero_grad()
        events[3].record()
        spans.append(events)
        if profiler and number == options.steps // 2 + 3:
            torch.cuda.synchronize()
            profiler.stop()
            profiler.export_chrome_trace(options.trace)
    torch.cuda.synchronize()
    step_ms = (time.perf_counter() - began) * 1e3 / options.steps
    late = spans[options.steps // 2 :]
    phases = {
        name: sum(events[place].elapsed_time(events[place + 1]) for events in late) / len(late)
        for place, name in enumerate(PHASES)
    }
    return {
        "step_ms": step_ms,
        "phases_ms": phases,
        "peak_allocated_bytes": torch.cuda.max_memory_allocated(),
        "peak_reserved_bytes": torch.cuda.max_memory_reserved(),
    }


def injected(options, loss, kept: list, number: int) -> None:
    """What some of the faults do between forward and backward."""
    import torch

    if options.fault == "reads-every-loss":
        for _ in range(20):
            loss.detach().mul(1.0).item()
    elif options.fault == "host-code":
        sum(range(400_000))
    elif options.fault == "keeps-graphs":
        kept.append(torch.empty(32 << 20, dtype=torch.uint8, device="cuda"))
    elif options.fault == "empties-cache":
        torch.cuda.empty_cache()
    elif options.fault == "out-of-memory" and number == 60:
        kept.append(torch.empty(1 << 42, dtype=torch.uint8, device="cuda"))


if __name__ == "__main__":
    main()
