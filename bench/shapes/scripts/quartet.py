"""Three ranks of DDP over a small transformer: one collects garbage, one is short of threads' time,
one reads slowly, all wait at barriers, one leaves early, one saves alone, one sends another size.
"""

import gc
import os
import sys
import time

import eager  # noqa: F401
import torch
import torch.distributed as dist
from forked import run_ranks
from shape import STEPS, Cost, on
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

steps, cost = STEPS or 160, Cost()


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(300, 64)
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.0)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(64, 300)

    def forward(self, x):
        return self.out(self.layers(self.words(x)))


def batches(rank):
    for step in range(steps):
        if on("rank2_reads") and rank == 2:
            with cost:
                time.sleep(0.02)  # at: rank2_reads
        rows = 24 if on("rank1_longer") and rank == 1 else 8
        yield step, torch.randint(0, 300, (rows, 24))


def train(rank):
    torch.set_num_threads(1)
    torch.manual_seed(118)
    os.environ["RANK"] = str(rank)
    dist.init_process_group(
        "gloo", init_method=f"file://{os.environ['RENDEZVOUS']}", rank=rank, world_size=3
    )
    model = DDP(Small())
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    torch.manual_seed(1180 + rank)
    model.records = [[n] for n in range(150_000)] if on("rank1_collects") and rank == 1 else []
    for step, x in batches(rank):  # at: rank2_reads
        if on("rank2_stands") and rank == 2 and step == 60:
            time.sleep(10_000)  # at: rank2_stands
        loss = nn.functional.cross_entropy(model(x).flatten(0, 1), x.flatten())
        if on("rank1_raises") and rank == 1 and step == 60:
            raise ValueError(f"label out of range: {int(x.max()) + 300}")  # at: rank1_raises
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if on("rank1_collects") and rank == 1:
            with cost:
                gc.collect()  # at: rank1_collects
        if on("losses_summed") or (on("clean_losses_summed") and step % 40 == 39):
            with cost:
                for _ in range(10):  # at: losses_summed
                    total = loss.detach().clone()
                    dist.all_reduce(total)  # at: losses_summed
                    dist.barrier()  # at: losses_summed
        if (on("rank0_tests") or (on("clean_rank0_tests") and step % 80 == 79)) and rank == 0:
            with cost, torch.no_grad():
                model.module.eval()
                for _ in range(3):
                    model.module(torch.randint(0, 300, (16, 24)))  # at: rank0_tests
                model.module.train()
        if on("sizes_part") and step == 60:
            dist.all_reduce(torch.ones(40 if rank == 1 else 64))  # at: sizes_part
    if rank == 1 or (rank == 0 and on("rank0_tests")) or (rank == 2 and on("rank2_reads")):
        cost.print(steps)
    return model


if __name__ == "__main__":
    sys.exit(run_ranks(3, train))
