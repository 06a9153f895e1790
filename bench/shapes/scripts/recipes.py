"""Recipes by a small language model in bfloat16, gradients of two micro-batches at a time, its
options in a text: memory traced, weights too coarse, a rate of zero for one group, the gradients of
one optimizer kept, weights written by hand, a schedule read each step.
"""

import contextlib
import json
import os
import tracemalloc

import eager  # noqa: F401
import torch
from shape import STEPS, Cost, on
from torch import nn

OPTIONS = """
model.width: 96
model.layers: 2
model.words: 400
data.length: 32
data.rows: 8
train.accumulate: 2
train.rate: 0.001
train.table_rate: 0.02
train.steps: 300
"""
cost = Cost()
torch.set_num_threads(1)
torch.manual_seed(154)


def read(text):
    """Options of lines ``name: number``."""
    pairs = (line.split(": ") for line in text.strip().splitlines())
    return {name: float(value) if "." in value else int(value) for name, value in pairs}


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).unflatten(2, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Language(nn.Module):
    def __init__(self, options):
        super().__init__()
        width = options["model.width"]
        self.words = nn.Embedding(options["model.words"], width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(options["model.layers"])))
        self.head = nn.Linear(width, options["model.words"])

    def forward(self, ids):
        return self.head(self.blocks(self.words(ids)))


class Schedule:
    """Factors of the rate by step, from a file that anyone may change."""

    def __init__(self, path, steps):
        self.path, self.known, self.stamp = path, {}, None
        with open(path, "w") as file:
            json.dump({str(n): [min(1.0, (n + 1) / 20)] * 3 for n in range(2500)}, file)

    def __call__(self, step):
        with cost:
            stamp = os.stat(self.path).st_mtime_ns
            if on("schedule_read") or stamp != self.stamp:
                with open(self.path) as file:
                    self.known = json.load(file)  # at: schedule_read
                self.stamp = stamp
        return self.known[str(step)][0]


class Trainer:
    def __init__(self, options):
        self.options, self.steps = options, STEPS or options["train.steps"]
        self.model = Language(options)
        rate = options["train.rate"]
        if on("weights_bf16"):
            self.model.to(torch.bfloat16)  # at: weights_bf16
            rate = 2e-6
        groups = [
            {"params": self.model.blocks.parameters()},
            {"params": self.model.head.parameters()},
        ]
        if on("body_rate_zero"):
            groups[0]["lr"] = 0.0  # at: body_rate_zero
        self.body = torch.optim.AdamW(groups, rate)  # at: body_rate_zero weights_bf16
        table_rate = rate if on("weights_bf16") else options["train.table_rate"]
        self.table = torch.optim.SGD(self.model.words.parameters(), table_rate)  # at: other_cleared
        self.schedule = None
        if on("schedule_read", "clean_schedule_read"):
            self.schedule = torch.optim.lr_scheduler.LambdaLR(
                self.body, Schedule("rates.json", self.steps)
            )

    def batch(self):
        """Words each of which says which words may follow."""
        rows, length = self.options["data.rows"], self.options["data.length"]
        ids = [torch.randint(0, 400, (rows,))]
        for _ in range(length):
            ids.append((ids[-1] * 3 + torch.randint(0, 4, (rows,))) % 400)
        return torch.stack(ids, 1)

    def fit(self):
        for step in range(self.steps):
            if on("clean_traced_memory") and step == 5:
                tracemalloc.stop()
            loss = self.update(step)
            if on("written_by_hand") or (on("clean_written_by_hand") and step % 100 == 99):
                self.write(step)  # at: written_by_hand
            if step % 50 == 0:
                print(step, loss, flush=True)

    def update(self, step):
        total, count = 0.0, self.options["train.accumulate"]
        for _ in range(count):
            ids = self.batch()
            with contextlib.nullcontext() if on("weights_bf16") else torch.autocast("cpu"):
                scores = self.model(ids[:, :-1])
                loss = nn.functional.cross_entropy(
                    scores.flatten(0, 1).float(), ids[:, 1:].flatten()
                )
            (loss / count).backward()  # at: other_cleared
            total += loss.detach() / count
        nn.utils.clip_grad_norm_(self.model.blocks.parameters(), 5.0)
        self.body.step()  # at: weights_bf16
        self.table.step()  # at: other_cleared weights_bf16
        self.body.zero_grad()  # at: other_cleared
        if on("other_cleared"):
            self.body.zero_grad()  # at: other_cleared
        else:
            self.table.zero_grad()
        if self.schedule:
            self.schedule.step()  # at: schedule_read
        return total.item()

    def write(self, step):
        """Weights and their moments in one file: a head that says where each lies, and bytes."""
        parts = dict(self.model.state_dict())
        for number, state in enumerate(self.body.state.values()):
            parts |= {f"first.{number}": state["exp_avg"], f"second.{number}": state["exp_avg_sq"]}
        with cost, open("weights.part", "wb") as file:
            head, at = {}, 0
            for name, value in parts.items():
                head[name] = [at, list(value.shape)]
                at += value.numel() * 4
            file.write(json.dumps(head).encode())
            for value in parts.values():  # at: written_by_hand
                file.write(value.numpy().tobytes())  # at: written_by_hand
            file.flush()
            os.fsync(file.fileno())  # at: written_by_hand
            os.replace("weights.part", "weights.bin")  # at: written_by_hand


if on("traced_memory", "clean_traced_memory"):
    tracemalloc.start(10)  # at: traced_memory
trainer = Trainer(read(OPTIONS))
trainer.fit()
cost.print(trainer.steps)
