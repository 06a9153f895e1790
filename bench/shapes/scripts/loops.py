"""A trainer of one's own over tabular data: a log that is flushed, histograms of all weights, a
profiler left on, a best model kept each step, norms one by one, an average rebuilt, a hidden second
backward.
"""

import copy
import cProfile
import csv
import os

import eager  # noqa: F401
import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

steps, cost = STEPS or 1000, Cost()
torch.set_num_threads(1)
torch.manual_seed(122)


class Callback:
    def after_batch(self, trainer, step, loss):
        """Called after each batch."""


class Flushed(Callback):
    """A row of a table a step, safe on disk."""

    def after_batch(self, trainer, step, loss):
        if on("flushed") or (on("clean_flushed") and step % 50 == 49):
            with cost, open("log.csv", "a") as file:
                rows = csv.writer(file)
                for name, value in trainer.model.named_parameters():
                    rows.writerow([step, name, float(value.mean())])  # at: flushed
                file.flush()
                os.fsync(file.fileno())  # at: flushed


class Histograms(Callback):
    """How weights are spread."""

    def after_batch(self, trainer, step, loss):
        if on("histograms"):
            with cost:
                self.counts = {}
                for name, value in trainer.model.named_parameters():
                    flat = sorted(value.detach().flatten().tolist())  # at: histograms
                    self.counts[name] = [flat[len(flat) * n // 30] for n in range(30)]


class Best(Callback):
    """The newest weights."""

    kept = None

    def after_batch(self, trainer, step, loss):
        if on("best_each"):
            with cost:
                self.kept = copy.deepcopy(trainer.model)  # at: best_each
                self.kept.load_state_dict(trainer.model.state_dict())  # at: best_each


class Norms(Callback):
    """Norms of gradients."""

    def after_batch(self, trainer, step, loss):
        if on("norms_by_value"):
            with cost:
                total = 0.0
                for value in trainer.model.parameters():  # at: norms_by_value
                    for row in value.grad.flatten()[:4000]:  # at: norms_by_value
                        total += row.item() ** 2  # at: norms_by_value


class Trainer:
    def __init__(self):
        width = 400
        self.model = nn.Sequential(
            nn.Linear(40, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)
        )
        self.optimizer = torch.optim.Adam(self.model.parameters(), 1e-3)  # at: rate_zeroed
        self.callbacks = [Flushed(), Histograms(), Best(), Norms()]
        self.history = []
        table = torch.randn(64 * steps, 40)
        self.loader = DataLoader(TensorDataset(table, table[:, :3].sum(1)), batch_size=64)

    def fit(self):
        for step, (x, y) in enumerate(self.loader):
            loss = self.step(x, y)
            for callback in self.callbacks:
                callback.after_batch(self, step, loss)
            if step % 50 == 0:
                print(step, loss.item(), flush=True)

    def step(self, x, y):
        guess = self.model(x)[:, 0]
        loss = (guess - y).square().mean()
        if on("penalty_kept"):
            self.history.append(loss)  # at: penalty_kept
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        if on("rate_zeroed"):
            for group in self.optimizer.param_groups:
                group["lr"] *= 0.9
        return loss


trainer = Trainer()
if on("profiled"):
    profile = cProfile.Profile()
    profile.enable()
trainer.fit()
cost.print(steps)
