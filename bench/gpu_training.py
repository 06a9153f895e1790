"""A small training on one GPU, of one shape and with one fault or none; ends with a line of JSON
that says what it measured itself.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
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
"""The clean twin of the fault with another model; the twin of the others has no fault at all."""
SHAPES = ("plain", "short", "scaler", "compiled", "checkpoint", "accumulate", "loader", "graphed")
PHASES = ("forward", "backward", "optimizer")
ROWS, WIDTH = 16384, 2048
"""A step takes 20 ms on an H200, all of it on the device."""
_ACCUMULATED = 4


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=[*FAULTS, TUNED], default=None)
    parser.add_argument("--shape", choices=SHAPES, default="plain")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument(
        "--seconds", type=float, default=0.0, help="at least so long, whatever --steps"
    )
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
    with turn():
        told = train(options, called(options, model), update)
    if int(os.environ.get("RANK", 0)) == 0:
        print(json.dumps(told), flush=True)
    if options.snapshot:
        torch.cuda.memory._dump_snapshot(options.snapshot)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


@contextlib.contextmanager
def turn():
    """Train while no other training that shares the file ``GPU_TURN`` does; others may start."""
    path = os.environ.get("GPU_TURN")
    if not path:
        yield
        return
    import torch._dynamo  # noqa: F401  the first optimizer imports it

    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def build(options):
    """The model, on the CPU."""
    from torch import nn

    if options.fault in ("untuned-convolutions", TUNED):
        layers = [nn.Conv2d(64, 64, 3, padding=1) for _ in range(8)]
        return nn.Sequential(
            nn.Conv2d(3, 64, 3, padding=1), *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )
    width, depth = WIDTH, 12
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
        sample = torch.randn(ROWS, WIDTH, device="cuda")
        return torch.cuda.make_graphed_callables(model, (sample,))
    return model


def batches(options):
    """Batches on the GPU, without an end."""
    if options.fault == "waits-for-data" or options.shape == "loader":
        yield from loaded(options)
    elif options.fault == "pageable-copies":
        yield from copied(options)
    import torch

    shape = (ROWS, WIDTH)
    if options.shape == "short":
        shape = (1024, 256)
    if options.fault == "tiny-kernels":
        shape = (1024, 32)
    if options.fault in ("untuned-convolutions", TUNED):
        shape = (128, 3, 64, 64)
    pinned = torch.randn(shape).pin_memory()
    while True:
        yield pinned.to("cuda", non_blocking=True)


def loaded(options):
    """Rows of a DataLoader; one that waits for data makes each in 1.5 ms without workers."""
    import torch

    class Rows(torch.utils.data.Dataset):
        def __init__(self):
            self.values = torch.randn(64, 512, WIDTH)

        def __len__(self):
            return 4096

        def __getitem__(self, index):
            if options.fault:
                time.sleep(0.0015)
            return self.values[index % 64]

    workers = {} if options.fault else {"num_workers": 4, "persistent_workers": True}
    loader = torch.utils.data.DataLoader(Rows(), ROWS // 512, pin_memory=True, **workers)
    while True:
        for batch in loader:
            yield batch.to("cuda", non_blocking=True).reshape(-1, WIDTH)


def copied(options):
    """Batches of 128 MiB that are not pinned."""
    import torch

    class Batches(torch.utils.data.IterableDataset):
        def __iter__(self):
            values = torch.randn(ROWS, WIDTH)
            while True:
                yield values

    for batch in torch.utils.data.DataLoader(Batches(), batch_size=None):
        yield batch.to("cuda")


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
        if is_over(options, number, began):
            break
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
    steps = len(events.spans)
    return {
        "steps": steps,
        "step_ms": (ended - began) * 1e3 / steps,
        "late_step_ms": (ended - half) * 1e3 / (steps - options.steps // 2),
        "phases_ms": events.mean_ms(),
        "losses": hashlib.sha256(torch.stack(losses).cpu().numpy().tobytes()).hexdigest()[:16],
        "peak_allocated_bytes": torch.cuda.max_memory_allocated(),
        "peak_reserved_bytes": torch.cuda.max_memory_reserved(),
    }


def is_over(options, number: int, began: float) -> bool:
    """Whether so many steps, or seconds, are done."""
    if options.seconds:
        return time.perf_counter() - began > options.seconds and number > options.steps
    return number >= options.steps


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
