"""Two ranks of DDP: a model of pairs of texts; metrics reduced by hand, checkpoints of rank 0."""

import hashlib
import os
import random
import sys

import eager  # noqa: F401
import torch
import torch.distributed as dist
from forked import run_ranks
from shape import STEPS, on
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

steps = STEPS or 320


class Tower(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.embed = nn.Embedding(500, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, batch_first=True) for _ in range(2)
        )
        self.out = nn.Linear(width, width)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return F.normalize(self.out(x.mean(1)), dim=-1)


def batches(rank):
    rng = random.Random(rank)
    for _ in range(steps):
        long = 96 if on("texts_longer") and rank == 1 else 24
        size = long + rng.randrange(4)
        yield torch.randint(0, 500, (8, size))


def digest(model):
    total = hashlib.sha256()
    for _ in range(4):
        for one in model.parameters():
            total.update(one.detach().numpy().tobytes())  # at: rank_digest
    return total.hexdigest()


def reduce_metrics(values):
    for value in values:
        dist.all_reduce(value)  # at: metrics_one_by_one
    return values


def train(rank):
    torch.set_num_threads(1)
    torch.manual_seed(4)
    os.environ["RANK"] = str(rank)
    dist.init_process_group(
        "gloo", init_method=f"file://{os.environ['RENDEZVOUS']}", rank=rank, world_size=2
    )
    options = {"bucket_cap_mb": 0.001} if on("buckets_tiny") else {}
    model = DDP(Tower(), **options)  # at: buckets_tiny
    optimizer = torch.optim.AdamW(model.parameters(), 5e-4)
    for step, ids in enumerate(batches(rank)):
        a, b = model(ids), model(ids.flip(1))
        loss = F.cross_entropy(a @ b.T * 10, torch.arange(len(ids)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 1 and (on("rank_digest") or (on("clean_rank_digest") and step % 80 == 0)):
            digest(model)  # at: rank_digest
        if on("metrics_one_by_one"):
            reduce_metrics([loss.detach() + k for k in range(40)])  # at: metrics_one_by_one
        elif on("clean_metrics_one_by_one") and step % 20 == 0:
            reduce_metrics([loss.detach()])
        if on("rank0_saves") and step % 4 == 0:
            if rank == 0:
                state = {"model": model.module.state_dict(), "pad": torch.zeros(3_000_000)}
                torch.save(state, "pair.pt")  # at: rank0_saves
            dist.barrier()
        elif on("clean_rank0_saves") and step == 300 and rank == 0:
            torch.save(model.module.state_dict(), "pair.pt")
    return model


if __name__ == "__main__":
    sys.exit(run_ranks(2, train))
