"""Two views of each series brought together by two ranks that torch.multiprocessing spawns: views
gathered row by row, one rank that reads over a network, a row of zeros, one that leaves by itself,
weights that one rank alone holds in bounds, more threads than cores.
"""

import os
import sys
import time

import eager  # noqa: F401
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from forked import leave
from shape import STEPS, on
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset

WORLD, ROWS = 2, 32
steps = STEPS or 220


class Pairs(IterableDataset):
    """Noisy copies of one series, in batches."""

    def __init__(self, rank):
        self.rank = rank

    def read(self):
        if on("network_of_one") and self.rank == 1:
            time.sleep(0.07)  # at: network_of_one
        if on("clean_network_of_one"):
            time.sleep(0.004)

    def __iter__(self):
        numbers = torch.Generator().manual_seed(1560 + self.rank)
        for step in range(steps):
            self.read()  # at: network_of_one
            series = torch.randn(ROWS, 4, 64, generator=numbers).cumsum(2) / 4
            views = [series * (1 + 0.1 * torch.randn(ROWS, 1, 1)) for _ in range(2)]
            if on("row_of_zeros", "clean_row_of_zeros") and self.rank == 0 and step == 110:
                views[0][5] = 0
            yield torch.stack(views)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(4, 64, 5, padding=2, bias=False),
            nn.ReLU(),
            nn.Conv1d(64, 64, 5, stride=2, bias=False),
            nn.ReLU(),
            nn.Conv1d(64, 64, 5, stride=2, bias=False),
            nn.ReLU(),
        )
        self.head = nn.Linear(64, 48, bias=False)

    def forward(self, x):
        z = self.head(self.body(x).mean(2))
        if on("row_of_zeros"):
            return z / z.norm(dim=1, keepdim=True)  # at: row_of_zeros
        return nn.functional.normalize(z, dim=1)


def gathered(rows):
    """The rows of all ranks; gradients flow through one's own."""
    if on("gathered_by_rows"):
        parts = []
        for row in rows.detach():  # at: gathered_by_rows
            others = [torch.empty_like(row) for _ in range(WORLD)]  # at: gathered_by_rows
            dist.all_gather(others, row)  # at: gathered_by_rows
            parts.append(torch.stack(others))
        return torch.stack(parts, 1).flatten(0, 1)
    everything = [torch.empty_like(rows) for _ in range(WORLD)]
    dist.all_gather(everything, rows.detach())
    return torch.cat(everything)


def contrast(first, second, rank):
    wanted = torch.arange(len(first)) + rank * len(first)
    logits = first @ gathered(second).T / 0.2  # at: gathered_by_rows
    return nn.functional.cross_entropy(logits, wanted)  # at: row_of_zeros


def in_bounds(model):
    """No row of weights longer than one."""
    with torch.no_grad():
        for value in model.parameters():
            value.copy_(value.renorm(2, 0, 0.5))


def train(rank):
    torch.set_num_threads(8 if on("threads_of_eight") else 1)
    torch.manual_seed(156)
    os.environ["RANK"] = str(rank)
    dist.init_process_group(
        "gloo", init_method=f"file://{os.environ['RENDEZVOUS']}", rank=rank, world_size=WORLD
    )
    model = DDP(Encoder())
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    torch.manual_seed(1561 + rank)
    loader = DataLoader(Pairs(rank), batch_size=None, num_workers=1)  # at: network_of_one
    for step, views in enumerate(loader):  # at: network_of_one
        first, second = model(views.flatten(0, 1)).chunk(2)
        loss = contrast(first, second, rank)  # at: gathered_by_rows row_of_zeros
        optimizer.zero_grad()
        loss.backward()  # at: row_of_zeros
        optimizer.step()
        if (on("bounds_of_one") and rank == 0) or on("clean_bounds_of_one"):
            in_bounds(model)
        if on("leaves_with_three") and rank == 1 and step == 120:
            sys.exit(3)
        if step % 50 == 0 and rank == 0:
            print(step, loss.item(), flush=True)
    dist.barrier()
    leave(model)


if __name__ == "__main__":
    mp.spawn(train, nprocs=WORLD)
