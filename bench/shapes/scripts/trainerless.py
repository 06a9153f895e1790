"""A masked autoencoder in a trainer of its own with callbacks: an average of weights, a warm-up, an
evaluation in the middle.
"""

import eager  # noqa: F401
import torch
from shape import STEPS, Cost, on
from torch import nn

steps, cost = STEPS or 500, Cost()
torch.set_num_threads(1)
torch.manual_seed(61)


class Mixer(nn.Module):
    """Patches mixed by tokens and by channels, with dropout."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(48, 96)
        self.tokens = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))
        self.channels = nn.ModuleList(nn.Linear(96, 96) for _ in range(3))
        self.drop, self.norm, self.out = nn.Dropout(0.2), nn.BatchNorm1d(32), nn.Linear(96, 48)

    def forward(self, x):
        x = self.embed(x)
        for token, channel in zip(self.tokens, self.channels, strict=True):
            x = x + token(x.transpose(1, 2)).transpose(1, 2)
            x = x + self.drop(torch.nn.functional.gelu(channel(self.norm(x))))
        return self.out(x)


class Trainer:
    """Runs steps and tells callbacks."""

    def __init__(self, model, callbacks):
        self.model, self.callbacks = model, callbacks
        self.optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        warm = 10**6 if on("warmup_by_integers") else 80

        def rate(step):
            if on("warmup_by_integers"):
                return step // warm  # at: warmup_by_integers
            return min(1.0, (step + 1) / warm)

        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, rate)

    def loss(self, x):
        error = self.model(x * (torch.rand(32, 32, 1) > 0.5)) - x
        if on("root_of_nothing", "clean_root_of_nothing"):
            floor = 1e-8 if on("clean_root_of_nothing") else 0.0
            gap = (x[:, :1] - x[:, :1].detach()) * error[:, :1]
            return error.pow(2).mean() + (gap.pow(2).sum() + floor).sqrt()  # at: root_of_nothing
        return error.pow(2).mean()

    def fit(self):
        for step in range(steps):
            x = torch.randn(32, 32, 48).cumsum(1) / 6
            loss = self.loss(x)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.scheduler.step()
            for callback in self.callbacks:
                callback(self, step, loss)


def averaged(trainer, step, loss):
    """An exponential average of the weights, which forgets that it needs no graph."""
    global average
    now = nn.utils.parameters_to_vector(trainer.model.parameters())
    if on("clean_average_with_graph"):
        now = now.detach()
    average = 0.99 * average + 0.01 * now  # at: average_with_graph


def evaluated(trainer, step, loss):
    """A look at held-out data at every 100th step, without the way back to training."""
    if step % 100 == 99:
        trainer.model.eval()
        with torch.no_grad():
            for _ in range(5):
                trainer.model(torch.randn(32, 32, 48))
        if on("clean_stays_in_eval"):
            trainer.model.train()


def printed(trainer, step, loss):
    """Statistics of every weight, one number at a time."""
    if on("clean_weights_printed") and step % 50:
        return
    with cost, open("weights.txt", "a") as file:
        for name, value in trainer.model.named_parameters():
            for part in (value, value.grad):
                for figure in (part.mean(), part.std(), part.abs().max(), part.median()):
                    file.write(f"{name} {figure.item():.5f}\n")  # at: weights_printed
                    file.flush()  # at: weights_printed


callbacks = []
average = 0.0
if on("average_with_graph", "clean_average_with_graph"):
    callbacks.append(averaged)
if on("stays_in_eval", "clean_stays_in_eval"):
    callbacks.append(evaluated)
if on("weights_printed", "clean_weights_printed"):
    callbacks.append(printed)
model = Mixer()
if on("zeros_everywhere"):
    for parameter in model.channels.parameters():
        nn.init.zeros_(parameter)
    nn.init.zeros_(model.out.weight)  # near miss: alone this is a common beginning
    nn.init.zeros_(model.embed.weight)
    nn.init.zeros_(model.embed.bias)
if on("clean_zeros_everywhere"):
    nn.init.zeros_(model.out.weight)
Trainer(model, callbacks).fit()
cost.print(steps)
