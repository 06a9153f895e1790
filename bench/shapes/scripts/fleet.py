"""Two ranks of DDP over a residual network: metrics gathered as objects, evaluation on rank 0, a
slow shard.
"""

import os
import sys
import time

import eager  # noqa: F401
import torch
import torch.distributed as dist
from forked import run_ranks
from shape import STEPS, on
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

steps = STEPS or 260


class Residual(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.first, self.last = nn.Linear(48, width), nn.Linear(width, 8)
        self.body = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(5)
        )

    def forward(self, x):
        x = self.first(x)
        for part in self.body:
            x = x + part(x)
        return self.last(x)


class Rows(Dataset):
    def __init__(self, rank):
        self.rank = rank

    def __len__(self):
        return steps * 32

    def __getitem__(self, index):
        if on("one_slow_shard") and self.rank == 1 and index % 8 == 0:
            time.sleep(0.003)  # at: one_slow_shard
        return torch.randn(48), index % 8


def evaluate(model):
    model.eval()
    with torch.no_grad():
        for _ in range(60):
            model.module(torch.randn(64, 48))  # at: evaluates_alone
    model.train()


def train(rank):
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    os.environ["RANK"] = str(rank)
    dist.init_process_group(
        "gloo", init_method=f"file://{os.environ['RENDEZVOUS']}", rank=rank, world_size=2
    )
    model = DDP(Residual(), bucket_cap_mb=0.02 if on("buckets_of_a_layer") else 25)
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    for step, (x, y) in enumerate(DataLoader(Rows(rank), 32)):  # at: one_slow_shard
        if on("more_rows") and rank == 1:
            x, y = x.repeat(10, 1), y.repeat(10)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if on("metrics_as_objects") or (on("clean_metrics_as_objects") and step % 50 == 0):
            for name in ("loss", "lr", "step", "seen", "spread"):
                found = [None, None]
                dist.all_gather_object(found, {name: float(loss)})  # at: metrics_as_objects
        if rank == 0 and (
            (on("evaluates_alone") and step % 4 == 0)
            or (on("clean_evaluates_alone") and step == 150)
        ):
            evaluate(model)  # at: evaluates_alone
    return model


if __name__ == "__main__":
    sys.exit(run_ranks(2, train))
