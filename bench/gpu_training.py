"""A small training on one GPU, of one shape and with one fault or none; ends with a line of JSON
that says what it measured itself.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
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
SHAPES = ("plain", "short", "scaler", "compiled", "checkpoint", "accumulate", "loader", "graphed")
PHASES = ("forward", "backward", "optimizer")
_ACCUMULATED = 4


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=[*FAULTS, TUNED], default=None)
    parser.add_argument("--shape", choices=SHAPES, default="plain")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--snapshot", default="")
    parser.add_argument("--trace", default="")
    parser.add_argument("--slow-rank", type=int, default=None, help="this rank sleeps each step")
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
    model = build(options).cuda()
    update = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=fault != "slow-optimizer")
    told = train(options, called(options, model), update)
    if int(os.environ.get("RANK", 0)) == 0:
        print(json.dumps(told), flush=True)
    if options.snapshot:
        torch.cuda.memory._dump_snapshot(options.snapshot)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def build(options):
    """The model, on the CPU."""
    from torch import nn

    if options.fault in ("untuned-convolutions", TUNED):
        layers = [nn.Conv2d(64, 64, 3, padding=1) for _ in range(8)]
        return nn.Sequential(
            nn.Conv2d(3, 64, 3, padding=1), *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )
    width, depth = 2048, 12
    if options.fault == "tiny-kernels":
        width, depth = 32, 400
    elif options.shape == "short":
        width, depth = 256, 6
    return nn.Sequential(
        *(layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.GELU()))
    )


def called(options, model):
    """What is called in each step: the model, or what its shape wraps it with."""
    import torch

    if "WORLD_SIZE" in os.environ:
        torch.distributed.init_process_group(os.environ.get("BACKEND", "gloo"))
        return torch.nn.parallel.DistributedDataParallel(model)
    if options.shape == "compiled":
        return torch.compile(model)
    if options.shape == "checkpoint":
        from torch.utils.checkpoint import checkpoint_sequential

        return lambda batch: checkpoint_sequential(model, 4, batch, use_reentrant=False)
    if options.shape == "graphed":
        sample = torch.randn(1024, 2048, device="cuda")
        return torch.cuda.make_graphed_callables(model, (sample,))
    return model


def batches(options):
    """Batches on the GPU."""
    import torch

    shape = (1024, 256 if options.shape == "short" else 2048)
    if options.fault == "tiny-kernels":
        shape = (1024, 32)
    if options.fault in ("untuned-convolutions", TUNED):
        shape = (32, 3, 64, 64)
    if options.shape == "loader":
        rows = torch.utils.data.TensorDataset(torch.randn(64 * 1024, shape[1]))
        loader = torch.utils.data.DataLoader(rows, 1024, num_workers=4, pin_memory=True)
        for number in range(options.steps):
            if number % 64 == 0:
                fetched = iter(loader)
            yield next(fetched)[0].to("cuda", non_blocking=True)
        return
    pinned = torch.randn(shape).pin_memory()
    for _ in range(options.steps):
        if options.fault == "waits-for-data":
            time.sleep(0.05)
        if options.fault == "pageable-copies":
            yield torch.randn(16 * shape[0], shape[1]).cuda()[: shape[0]]
        else:
            yield pinned.to("cuda", non_blocking=True)


class Events:
    """CUDA events around the phases, and ranges of the profiler."""

    def __init__(self):
        self.spans: list = []
        self.marks: list = []

    @contextlib.contextmanager
    def phase(self, name):
        """Marks begin and end of a phase."""
        import torch

        self._mark()
        with torch.profiler.record_function(name):
            yield
        self._mark()

    def _mark(self):
        import torch

        self.marks.append(torch.cuda.Event(enable_timing=True))
        self.marks[-1].record()

    def step_ends(self):
        """The marks so far are those of one step."""
        self.spans.append(self.marks)
        self.marks = []

    def mean_ms(self):
        """Milliseconds a step by phase, of the second half of the steps."""
        late = self.spans[len(self.spans) // 2 :]
        totals = dict.fromkeys(PHASES, 0.0)
        for marks in late:
            for pair, (begin, end) in enumerate(zip(marks[::2], marks[1::2], strict=True)):
                is_optimizer = 2 * pair + 2 == len(marks)
                name = PHASES[-1] if is_optimizer else PHASES[pair % 2]
                totals[name] += begin.elapsed_time(end)
        return {name: total / len(late) for name, total in totals.items()}


def train(options, model, update) -> dict:
    """Train; mean milliseconds of the phases by CUDA events, and of a step by the clock."""
    import torch

    kept, losses, events = [], [], Events()
    profiler = torch.profiler.profile() if options.trace else None
    scaler = torch.amp.GradScaler("cuda", enabled=options.shape == "scaler")
    torch.cuda.synchronize()
    began = time.perf_counter()
    for number, batch in enumerate(batches(options)):
        if number == options.steps // 2:
            torch.cuda.synchronize()
            half = time.perf_counter()
            if profiler:
                profiler.start()
        if options.slow_rank == int(os.environ.get("RANK", 0)):
            time.sleep(0.03)
        parts = batch.chunk(_ACCUMULATED) if options.shape == "accumulate" else (batch,)
        for part in parts:
            with events.phase("forward"), amp(options):
                loss = model(part).float().square().mean() / len(parts)
            injected(options, loss, kept, number)
            losses.append(loss.detach())
            is_bad = options.fault == "nan" and number > 60
            with events.phase("backward"):
                scaler.scale(loss * float("nan") if is_bad else loss).backward()
        with events.phase("optimizer"):
            scaler.step(update)
            scaler.update()
            update.zero_grad()
        events.step_ends()
        if profiler and number == options.steps // 2 + 3:
            torch.cuda.synchronize()
            profiler.stop()
            profiler.export_chrome_trace(options.trace)
    torch.cuda.synchronize()
    ended = time.perf_counter()
    return {
        "step_ms": (ended - began) * 1e3 / options.steps,
        "late_step_ms": (ended - half) * 1e3 / (options.steps - options.steps // 2),
        "phases_ms": events.mean_ms(),
        "losses": hashlib.sha256(torch.stack(losses).cpu().numpy().tobytes()).hexdigest()[:16],
        "peak_allocated_bytes": torch.cuda.max_memory_allocated(),
        "peak_reserved_bytes": torch.cuda.max_memory_reserved(),
    }


def amp(options):
    """The context of the forward."""
    import torch

    if options.shape == "scaler":
        return torch.autocast("cuda", torch.float16)
    return contextlib.nullcontext()


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
