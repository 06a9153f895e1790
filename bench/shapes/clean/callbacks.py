"""A loop with callbacks after Keras: history, a CSV log, JSON lines per step, the best checkpoint,
a rate that falls on plateaus.
"""

import csv
import json

import torch
from torch import nn


class Callback:
    def on_train_begin(self, model): ...

    def on_batch_end(self, step, logs): ...

    def on_epoch_end(self, epoch, logs): ...

    def on_train_end(self, model): ...


class CSVLogger(Callback):
    def on_train_begin(self, model):
        self.file = open("log.csv", "w", newline="")  # noqa: SIM115
        self.writer = csv.DictWriter(self.file, ["epoch", "loss", "val_loss", "val_accuracy"])
        self.writer.writeheader()

    def on_epoch_end(self, epoch, logs):
        self.writer.writerow({"epoch": epoch, **logs})

    def on_train_end(self, model):
        self.file.close()


class JsonLines(Callback):
    def on_train_begin(self, model):
        self.file = open("steps.jsonl", "w")  # noqa: SIM115

    def on_batch_end(self, step, logs):
        self.file.write(json.dumps({"step": step, **logs}) + "\n")

    def on_train_end(self, model):
        self.file.close()


class ModelCheckpoint(Callback):
    best = float("inf")

    def on_train_begin(self, model):
        self.model = model

    def on_epoch_end(self, epoch, logs):
        if logs["val_loss"] < self.best:
            self.best = logs["val_loss"]
            torch.save(self.model.net.state_dict(), "best.pt")


class ReduceRate(Callback):
    def on_train_begin(self, model):
        self.schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(model.optimizer, patience=1)

    def on_epoch_end(self, epoch, logs):
        self.schedule.step(logs["val_loss"])


class Model:
    def __init__(self, net):
        self.net = net

    def compile(self, optimizer, loss):
        self.optimizer, self.loss = optimizer, loss

    def train_on_batch(self, x, y):
        loss = self.loss(self.net(x), y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    @torch.no_grad()
    def evaluate(self, x, y):
        self.net.eval()
        scores = self.net(x)
        self.net.train()
        right = (scores.argmax(1) == y).float().mean().item()
        return {"val_loss": self.loss(scores, y).item(), "val_accuracy": right}

    def fit(self, x, y, *, batch_size, epochs, validation_data, callbacks):
        for callback in callbacks:
            callback.on_train_begin(self)
        step = 0
        for epoch in range(epochs):
            losses = []
            for rows in torch.randperm(len(x)).split(batch_size):
                losses.append(self.train_on_batch(x[rows], y[rows]))
                step += 1
                for callback in callbacks:
                    callback.on_batch_end(step, {"loss": losses[-1]})
            logs = {"loss": sum(losses) / len(losses), **self.evaluate(*validation_data)}
            print(f"Epoch {epoch + 1}/{epochs}", {name: round(v, 4) for name, v in logs.items()})
            for callback in callbacks:
                callback.on_epoch_end(epoch, logs)
        for callback in callbacks:
            callback.on_train_end(self)


torch.set_num_threads(1)
torch.manual_seed(19)
rule = nn.Sequential(nn.Linear(40, 20), nn.Tanh(), nn.Linear(20, 5)).requires_grad_(False)
x = torch.randn(26_000, 40)
y = (4 * rule(x) + 0.3 * torch.randn(26_000, 5)).argmax(1)
net = nn.Sequential(
    nn.Linear(40, 320), nn.ELU(), nn.Linear(320, 320), nn.ELU(), nn.Dropout(0.2), nn.Linear(320, 5)
)
model = Model(net)
model.compile(torch.optim.Adamax(net.parameters(), 1e-3), nn.CrossEntropyLoss())
model.fit(
    x[:25_000],
    y[:25_000],
    batch_size=256,
    epochs=8,
    validation_data=(x[25_000:], y[25_000:]),
    callbacks=[CSVLogger(), JsonLines(), ModelCheckpoint(), ReduceRate()],
)
