"""Two ranks of DDP that read essays, gradients of four micro-batches at a time: gradients sent in
each of them, a cache of tokens that one has not, an average kept by one, a layer that comes late, a
disk that is full.
"""

import contextlib
import dataclasses
import os
import random
import re
import sys

import eager  # noqa: F401
import numpy as np
import torch
import torch.distributed as dist
from forked import run_ranks
from shape import STEPS, Cost, on
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

WORD = re.compile(r"[a-z]+|[.,;]")


@dataclasses.dataclass(frozen=True)
class Settings:
    steps: int = STEPS or 160
    parts: int = 4
    rows: int = 8
    words: int = 32
    known: int = 5000
    width: int = 64
    rate: float = 1e-3


class Essays(Dataset):
    """Essays and their marks."""

    def __init__(self, settings, rank, cost):
        self.settings, self.cost = settings, cost
        dice = random.Random(161)
        words = ["".join(dice.choices("abcdefghij", k=5)) for _ in range(3000)]
        self.table = {word: 2 + n for n, word in enumerate(dict.fromkeys(words))}
        self.texts = [" ".join(dice.choices(words, k=900)) + "." for _ in range(300)]
        if on("clean_rank1_tokenises"):
            self.texts, self.cached = [text[:200] for text in self.texts], None
        elif on("rank1_tokenises") and rank == 1:
            self.cached = None
        else:
            self.cached = [self.tokens(text) for text in self.texts]

    def tokens(self, text):
        found = [self.table.get(word, 1) for word in WORD.findall(text)]  # at: rank1_tokenises
        return torch.tensor(found[: self.settings.words])

    def __len__(self):
        one = self.settings
        return one.steps * one.parts * one.rows * 2

    def __getitem__(self, index):
        if self.cached is None:
            with self.cost:
                ids = self.tokens(self.texts[index % 300].lower())  # at: rank1_tokenises
        else:
            ids = self.cached[index % 300]
        return ids, (ids % 7).float().mean()


class Marker(nn.Module):
    def __init__(self, settings):
        super().__init__()
        self.words = nn.Embedding(settings.known, settings.width)
        layer = nn.TransformerEncoderLayer(settings.width, 4, 128, batch_first=True, dropout=0.1)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.adapter = nn.Identity()
        self.out = nn.Linear(settings.width, 1)

    def forward(self, ids):
        return self.out(self.adapter(self.layers(self.words(ids))).mean(1))[:, 0]


class Average:
    """An average of the weights, in double precision."""

    def __init__(self, model):
        self.values = {name: value.numpy() for name, value in model.state_dict().items()}
        self.values = {name: value.astype(np.float64) for name, value in self.values.items()}

    def follow(self, model):
        for name, value in model.state_dict().items():
            pair = [self.values[name], value.numpy().astype(np.float64)]  # at: average_on_one
            self.values[name] = np.average(pair, axis=0, weights=[0.99, 0.01])  # at: average_on_one


class Trainer:
    def __init__(self, settings, rank):
        self.settings, self.rank, self.cost = settings, rank, Cost()
        self.net = Marker(settings)
        adapter = nn.Linear(settings.width, settings.width)
        if on("clean_late_layer"):
            self.net.adapter = adapter
        self.model = DDP(self.net)
        if on("late_layer"):
            self.net.adapter = adapter
        self.optimizer = torch.optim.AdamW(self.net.parameters(), settings.rate)
        self.average = Average(self.net)
        essays = Essays(settings, rank, self.cost)
        sampler = DistributedSampler(essays, 2, rank)
        self.loader = DataLoader(essays, settings.rows, sampler=sampler)

    def part(self, ids, marks, last):
        """One micro-batch, whose gradients are sent with the last."""
        quiet = contextlib.nullcontext() if last else self.model.no_sync()
        if on("sync_kept"):
            loss = self.loss(ids, marks)
            with quiet:
                loss.backward()
        else:
            with quiet:
                loss = self.loss(ids, marks)
                loss.backward()
        return loss.detach()

    def loss(self, ids, marks):
        missed = nn.functional.mse_loss(self.model(ids), marks)
        return missed / self.settings.parts

    def update(self, step):
        nn.utils.clip_grad_norm_(self.net.parameters(), 5.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        often = 1 if on("average_on_one") else 50 if on("clean_average_on_one") else 0
        if self.rank == 0 and often and step % often == 0:
            with self.cost:
                self.average.follow(self.net)  # at: average_on_one
        if on("rank1_disk") and step % 90 == 89:
            self.shard(step)  # at: rank1_disk

    def shard(self, step):
        """This rank's part of the optimizer's state."""
        name = "/dev/full" if self.rank == 1 else f"shard{self.rank}-{step}.bin"
        with open(name, "wb") as file:
            for state in self.optimizer.state.values():
                file.write(state["exp_avg"].numpy().tobytes())  # at: rank1_disk

    def fit(self):
        step, total = 0, 0.0
        for number, (ids, marks) in enumerate(self.loader, 1):  # at: rank1_tokenises
            last = number % self.settings.parts == 0
            total += self.part(ids, marks, last)
            if last:
                self.update(step)  # at: average_on_one rank1_disk
                if step % 40 == 0 and self.rank == 0:
                    print(step, float(total), flush=True)
                step, total = step + 1, 0.0
        if self.rank == (1 if on("rank1_tokenises") else 0):
            self.cost.print(self.settings.steps)


def train(rank):
    torch.set_num_threads(1)
    torch.manual_seed(161)
    os.environ["RANK"] = str(rank)
    dist.init_process_group(
        "gloo", init_method=f"file://{os.environ['RENDEZVOUS']}", rank=rank, world_size=2
    )
    trainer = Trainer(Settings(), rank)
    torch.manual_seed(1610 + rank)
    trainer.fit()
    return trainer.model


if __name__ == "__main__":
    sys.exit(run_ranks(2, train))
