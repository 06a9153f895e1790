"""argparse into a dataclass into a Trainer: micro-batches accumulated with a short last one;
batches that are not finite are skipped before the forward; clipping that seldom bites.
"""

import argparse
import contextlib
import dataclasses
import json
import time

import torch
from torch import nn


@dataclasses.dataclass
class Config:
    width: int = 64
    layers: int = 2
    rate: float = 1e-3
    batch: int = 56
    micro: int = 24
    steps: int = 170
    clip: float = 5.0
    seed: int = 37

    @classmethod
    def from_args(cls, argv=None):
        parser = argparse.ArgumentParser()
        for field in dataclasses.fields(cls):
            parser.add_argument(f"--{field.name}", type=field.type, default=field.default)
        return cls(**vars(parser.parse_args(argv)))


class Classifier(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.tokens = nn.Embedding(12, config.width)
        self.place = nn.Parameter(0.02 * torch.randn(40, config.width))
        layer = nn.TransformerEncoderLayer(
            config.width, 4, 2 * config.width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, config.layers, enable_nested_tensor=False)
        self.head = nn.Linear(config.width, 4)

    def forward(self, tokens):
        return self.head(self.encoder(self.tokens(tokens) + self.place).mean(1))


class Trainer:
    def __init__(self, config):
        self.config, self.step, self.skipped = config, 0, 0
        torch.manual_seed(config.seed)
        self.x = torch.randint(12, (9_000, 40))
        self.y = nn.functional.one_hot(self.x % 4, 4).sum(1).float().softmax(1)
        self.weight = torch.ones(9_000)
        self.weight[4_321] = float("inf")
        self.model = Classifier(config)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=config.rate)

    @contextlib.contextmanager
    def update(self):
        self.optimizer.zero_grad(set_to_none=True)
        yield
        nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip)
        self.optimizer.step()

    def train_step(self, rows):
        total = 0.0
        with self.update():
            for part in rows.split(self.config.micro):
                losses = nn.functional.cross_entropy(
                    self.model(self.x[part]), self.y[part], reduction="none"
                )
                loss = (losses * self.weight[part]).sum() / len(rows)
                loss.backward()
                total += loss.item()
        return total

    def fit(self):
        with contextlib.ExitStack() as stack:
            log = stack.enter_context(open("train.jsonl", "w"))
            stack.callback(lambda: print("skipped", self.skipped))
            while self.step < self.config.steps:
                for rows in torch.randperm(len(self.x)).split(self.config.batch):
                    if not self.weight[rows].isfinite().all():
                        self.skipped += 1
                        continue
                    loss = self.train_step(rows)
                    self.step += 1
                    log.write(json.dumps({"step": self.step, "loss": loss, "at": time.time()}))
                    log.write("\n")
                    if self.step % 20 == 0:
                        print(f"step {self.step} loss {loss:.4f}")
                    if self.step == self.config.steps:
                        break


if __name__ == "__main__":
    torch.set_num_threads(1)
    Trainer(Config.from_args()).fit()
