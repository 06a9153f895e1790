"""A mixture of experts for tokens, trained by a class with hooks; a VAE with a codebook by the
same class.
"""

import gc
from collections import deque

import eager  # noqa: F401
import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F

torch.set_num_threads(1)
torch.manual_seed(31)
cost = Cost()


class Expert(nn.Sequential):
    def __init__(self, width):
        super().__init__(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))


class Mixture(nn.Module):
    def __init__(self, width=48, experts=4):
        super().__init__()
        self.embed, self.head = nn.Embedding(300, width), nn.Linear(width, 300)
        self.router = nn.Linear(width, experts)
        self.experts = nn.ModuleList(Expert(width) for _ in range(experts))
        self.chosen = self.balance = None

    def forward(self, tokens):
        x = self.embed(tokens).flatten(0, 1)
        odds = self.router(x).softmax(-1)
        weight, self.chosen = odds.max(-1)
        self.balance = (odds.mean(0) ** 2).sum() * len(self.experts)
        out = torch.zeros_like(x)
        for k, expert in enumerate(self.experts):
            rows = (self.chosen == k).nonzero()[:, 0]
            out = out.index_add(0, rows, expert(x[rows]) * weight[rows, None])
        return self.head(x + out)


class Codebook(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 32))
        self.decode = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 256))
        self.codes = nn.Embedding(64, 32)
        if on("relu_dead"):
            nn.init.constant_(self.decode[0].bias, -300.0)
            nn.init.constant_(self.encode[0].bias, -300.0)

    def forward(self, x):
        z = self.encode(x)
        near = torch.cdist(z, self.codes.weight).argmin(1)
        code = self.codes(near)
        return self.decode(z + (code - z).detach()), z, code


class Trainer:
    def __init__(self, model, rate):
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), rate)
        self.after, self.aux, self.latents = [], [], deque(maxlen=None)

    def step(self, batch):
        loss = self.loss(batch)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        for function in self.after:
            function(self)

    def run(self, batches):
        for batch in batches:
            self.step(batch)


class Language(Trainer):
    def loss(self, tokens):
        scores = self.model(tokens[:, :-1])
        loss = F.cross_entropy(scores, tokens[:, 1:].flatten())
        if on("aux_kept"):
            self.aux.append(self.model.balance)
        elif on("clean_aux_kept"):
            self.aux.append(float(self.model.balance))
        return loss + 0.01 * self.model.balance


class Pictures(Trainer):
    def loss(self, x):
        out, z, code = self.model(x)
        if on("latents_kept"):
            self.latents.append(torch.cat([out, x, z], 1).detach())
        elif on("clean_latents_kept"):
            self.latents = deque([*self.latents, out.detach()][-40:])
        return F.mse_loss(out, x) + F.mse_loss(z, code.detach()) + F.mse_loss(z.detach(), code)


def usage_table(trainer):
    table = {}
    with cost:
        for expert in trainer.model.chosen:  # at: usage_table
            key = int(expert)  # at: usage_table
            table[key] = table.get(key, 0) + 1  # at: usage_table


def usage_counted(trainer):
    trainer.model.chosen.bincount(minlength=4).tolist()


def swept(trainer):
    with cost:
        gc.collect()  # at: gc_every


def tokens(steps):
    for _ in range(steps):
        yield (torch.arange(33) * 7 + torch.randint(0, 300, (24, 1))) % 300


def pictures(steps):
    base = torch.rand(8, 256)
    for _ in range(steps):
        yield base[torch.randint(0, 8, (64,))] + 0.1 * torch.randn(64, 256)


if on("usage_table", "clean_usage_table", "aux_kept", "clean_aux_kept"):
    steps = STEPS or 700
    trainer = Language(Mixture(), 1e-3)
    if on("usage_table"):
        trainer.after.append(usage_table)
    if on("clean_usage_table"):
        trainer.after.append(usage_counted)
    trainer.run(tokens(steps))
else:
    steps = STEPS or 1200
    trainer = Pictures(Codebook(), 3e-4)
    if on("gc_every"):
        trainer.after.append(swept)
    trainer.run(pictures(steps))
cost.print(steps)
