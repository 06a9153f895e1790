"""Trainings of ``nan_cases``: ``python bench/nan_training.py CASE ...``, a forked process each
where there are several. Prints the losses.
"""

from __future__ import annotations

import atexit
import math
import os
import sys
from contextlib import nullcontext

import torch
from nan_cases import BY_NAME, FAULT_STEP, ROWS, WIDTH, Case, Net
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

STEPS = 24


class Rows(Dataset):
    """Random rows, one of which may be bad; each with the file that it stands for."""

    def __init__(self, bad: int | None):
        self.values = torch.randn(ROWS * STEPS, WIDTH, generator=torch.Generator().manual_seed(1))
        self.files = [f"sample-{index}.npy" for index in range(len(self.values))]
        if bad is not None:
            self.values[bad, 3] = math.nan

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.values[index]


def main(names: list[str]) -> None:
    """Train one after the other."""
    if len(names) == 1:
        return train(names[0])
    import torch._dynamo  # noqa: F401  once, and not in each child

    for name in names:
        sys.stdout.flush()
        if os.fork() == 0:
            train(name)
            sys.stdout.flush()
            atexit._run_exitfuncs()
            os._exit(0)
        if os.wait()[1]:
            raise SystemExit(f"{name} failed")
    return None


def train(name: str) -> None:
    """Train, and print the losses to the bit."""
    case = BY_NAME[name]
    rank = int(os.environ.get("RANK", 0))
    if case.how == "ranks":
        torch.distributed.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Net(case.odd())
    called = nn.parallel.DistributedDataParallel(model) if case.how == "ranks" else model
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    scaler = None
    if case.how in ("scaler", "search"):
        start = 2.0**20 if case.how == "scaler" else 2.0**127
        scaler = torch.amp.GradScaler("cpu", init_scale=start)
    bad = FAULT_STEP * ROWS + 2 if case.how == "bad_sample" else None
    losses = []
    for step, x in enumerate(DataLoader(Rows(bad), ROWS, num_workers=0)):
        fault = case.layer is not None and _is_due(case, step, rank)
        if case.how == "poison" and step == FAULT_STEP:
            with torch.no_grad():
                model.body.after.up.weight[0, 0] = math.nan
        losses.append(_step(case, called, optimizer, scaler, x=x, fault=fault))
        if case.how == "evaluate" and step % 5 == 0:
            with torch.no_grad():
                (model(x * math.nan)).sum().item()
    sys.stdout.write(f"{name} {rank} {losses} {torch.rand(2).tolist()}\n")
    if case.how == "ranks":
        torch.distributed.destroy_process_group()


def _is_due(case: Case, step: int, rank: int) -> bool:
    if case.how == "ranks":
        return step == FAULT_STEP and rank == 1
    return step >= FAULT_STEP if case.how == "scaler" else step == FAULT_STEP


def _step(case: Case, model: nn.Module, optimizer, scaler, *, x, fault: bool) -> float:
    parts = x.chunk(2) if case.how == "accumulate" else (x,)
    autocast = torch.autocast("cpu", torch.bfloat16) if case.how == "autocast" else nullcontext()
    for part in parts:
        with autocast:
            if case.how == "checkpoint":
                out = checkpoint(model, part, fault, use_reentrant=False)
            else:
                out = model(part, fault)
            loss = case.loss(out, fault) / len(parts)
        (scaler.scale(loss) if scaler else loss).backward()
    if scaler:
        scaler.step(optimizer)
        scaler.update()
    else:
        optimizer.step()
    optimizer.zero_grad()
    return loss.item()


if __name__ == "__main__":
    main(sys.argv[1:])
