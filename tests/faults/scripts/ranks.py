"""A small DDP training over gloo on WORLD ranks, with a fault on one of them (environment variable
FAULT) or none.

The ranks are forked after torch is imported, so that a start costs one import. Rank 0 prints what
the fault cost.
"""

import json
import os
import random
import time

import eager  # noqa: F401
import torch
import torch.distributed as dist
from forked import run_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel

FAULT = os.environ.get("FAULT", "none")
WORLD = int(os.environ.get("WORLD", "2"))
STEPS = int(os.environ.get("STEPS", "120"))
SLOW_RANK = int(os.environ.get("SLOW_RANK", "1"))
PAUSE_S = 0.012


class Pause(torch.autograd.Function):
    """Takes time in backward, as a slow device would."""

    @staticmethod
    def forward(ctx, x, seconds):
        ctx.seconds = seconds
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(ctx.seconds)
        return gradient, None


class Net(nn.Module):
    def __init__(self, slow):
        super().__init__()
        self.words = nn.Embedding(50, 64)
        self.first, self.second = nn.Linear(64, 256), nn.Linear(256, 64)
        self.slow = slow

    def forward(self, x):
        time.sleep(
            0.004 + (PAUSE_S if self.slow and FAULT == "forward" else 0) + (x.shape[1] - 2) * 6e-4
        )
        pause = 0.006 + (PAUSE_S if self.slow and FAULT == "backward" else 0)
        return self.second(Pause.apply(torch.relu(self.first(self.words(x))), pause))


class SlowAdam(torch.optim.SGD):
    def step(self, closure=None):
        time.sleep(PAUSE_S)
        return super().step(closure)


class Items(torch.utils.data.Dataset):
    def __init__(self, slow):
        self.slow = slow

    def __len__(self):
        return STEPS

    def __getitem__(self, index):
        if self.slow and FAULT == "data":
            time.sleep(PAUSE_S)
        length = random.randint(2, 100) if FAULT == "lengths" else 2
        return torch.randint(50, (length,))


def train(rank):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(WORLD))
    torch.set_num_threads(1)
    random.seed(rank)
    torch.manual_seed(rank)
    dist.init_process_group(
        "gloo", init_method=f"file://{os.environ['RENDEZVOUS']}", rank=rank, world_size=WORLD
    )
    slow = rank == SLOW_RANK
    model = DistributedDataParallel(Net(slow))
    kind = SlowAdam if slow and FAULT == "optimizer" else torch.optim.SGD
    optimizer = kind(model.parameters(), lr=1e-3)
    lengths = []
    loader = torch.utils.data.DataLoader(Items(slow), batch_size=1)
    for step, batch in enumerate(loader):
        lengths.append(batch.shape[1])
        if slow and step == 40 and FAULT == "hang":
            time.sleep(1000)
        if slow and step == 40 and FAULT == "raise":
            raise RuntimeError("disk quota exceeded")
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if slow and FAULT == "host":
            time.sleep(PAUSE_S)
    every = [None] * WORLD
    dist.all_gather_object(every, lengths)
    if rank == 0:
        truth = PAUSE_S * 1e3 if FAULT not in ("none", "lengths") else 0.0
        if FAULT == "lengths":
            steps = [sorted(step) for step in zip(*every)]
            truth = sum(step[-1] - sum(step) / WORLD for step in steps) / len(steps) * 0.6
        print(json.dumps({"truth_ms_per_step": truth, "steps": STEPS}), flush=True)
    dist.destroy_process_group()
    return model


def main():
    return run_ranks(WORLD, train)


if __name__ == "__main__":
    raise SystemExit(main())
