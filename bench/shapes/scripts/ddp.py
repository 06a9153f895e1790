"""Two ranks of DDP over gloo: a classifier of texts with a DistributedSampler, accumulation and a
log of rank 0.
"""

import contextlib
import os
import random
import signal
import sys
import time

import torch
import torch.distributed as dist
from forked import run_ranks
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

steps = STEPS or 360
SLOW = 1


class Texts(Dataset):
    def __init__(self, rank):
        rng, long = random.Random(rank), 160 if on("longer_texts") and rank == SLOW else 40
        self.texts = [
            [rng.randrange(200) for _ in range(long + rng.randrange(4))] for _ in range(1500)
        ]
        self.rank = rank

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        if on("slow_shard") and self.rank == SLOW:
            time.sleep(0.002)  # at: slow_shard
        if on("same_data"):
            return index, self.texts[index]
        return index, self.texts[index]


def collate(rows):
    size = max(len(text) for _, text in rows)
    return torch.tensor([text + [0] * (size - len(text)) for _, text in rows])


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(200, 64)
        self.layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.0)
        self.norm, self.head, self.extra = nn.BatchNorm1d(64), nn.Linear(64, 4), nn.Linear(64, 4)

    def forward(self, tokens, step):
        x = self.norm(self.layer(self.embed(tokens)).mean(1))
        if on("clean_unused_flag"):
            return self.head(x) if step % 2 else self.extra(x)
        return self.head(x) + self.extra(x)


class Linger(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(0.012)
        return gradient


def tensorboard(step):
    """Histograms by rank 0."""
    time.sleep(0.012)  # at: rank0_log


def train(rank):
    torch.set_num_threads(1)
    torch.manual_seed(0 if not on("replicas") else rank)
    dist.init_process_group(
        "gloo", init_method=f"file://{os.environ['RENDEZVOUS']}", rank=rank, world_size=2
    )
    os.environ["RANK"] = str(rank)
    net = Classifier()
    net = DistributedDataParallel(
        net, find_unused_parameters=on("unused_flag", "clean_unused_flag")
    )
    data = Texts(0 if on("same_data") else rank)
    sampler = None if on("same_data") else DistributedSampler(data, shuffle=True)
    loader = DataLoader(data, 8, sampler=sampler, collate_fn=collate)  # at: slow_shard same_data
    optimizer = torch.optim.SGD(net.parameters(), 0.05)
    done = micro = 0
    while done < steps:
        for tokens in loader:
            labels = tokens[:, 0] % 4
            micro += 1
            last = micro % 4 == 0 if on("no_sync", "clean_no_sync") else True
            quiet = net.no_sync() if on("clean_no_sync") and not last else contextlib.nullcontext()
            with quiet:
                logits = net(tokens, done)
                if on("slow_rank") and rank == SLOW:
                    logits = Linger.apply(logits)
                loss = F.cross_entropy(logits, labels)
                loss.backward()
            if not last:
                continue
            optimizer.step()
            optimizer.zero_grad()
            done += 1
            if on("rank0_log") and rank == 0:
                tensorboard(done)  # at: rank0_log
            if on("clean_rank0_log") and rank == 0 and done % 60 == 0:
                tensorboard(done)
            if on("replicas") and rank == 1 and done % 3 == 0:
                with torch.no_grad():
                    net.module.head.weight.mul_(1.02)
            if on("rank_dies") and rank == 1 and done == 50:
                raise ValueError("label 7 is out of range in shard 12")  # at: rank_dies
            if on("rank_killed") and rank == 1 and done == 50:
                os.kill(os.getpid(), signal.SIGKILL)
            if on("rank_hangs") and rank == 1 and done == 50:
                time.sleep(600)  # at: rank_hangs
            if done >= steps:
                break
    if rank == 0:
        Cost().print(steps)


if __name__ == "__main__":
    sys.exit(abs(run_ranks(2, train)))
