"""A language model of bytes on packed documents, two micro-batches an update, a sample now and then
and checkpoints of its own: callers looked up, a fit searched for, surprises kept, weights restored,
blocks in a list, a packer nobody reads, gradients left off.
"""

import bisect
import dataclasses
import inspect
import math
import os
import random
import subprocess
import sys

import eager  # noqa: F401
import numpy as np
import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset

torch.set_num_threads(1)
cost = Cost()


@dataclasses.dataclass(frozen=True)
class Plan:
    steps: int = STEPS or 300
    parts: int = 2
    rows: int = 4
    length: int = 128
    pool: int = 6000
    width: int = 88
    layers: int = 2
    rate: float = 4e-3
    warm: int = 20
    kept_every: int = 70
    sampled_every: int = 65


def written(count):
    """Short texts, in which each word hints at the next."""
    dice = random.Random(17)
    words = ["".join(dice.choices("etaoinshrdlu", k=dice.randint(2, 7))) for _ in range(60)]
    follow = {word: dice.sample(words, 4) for word in words}
    texts = []
    for _ in range(count):
        text = [dice.choice(words)]
        for _ in range(dice.randint(3, 12)):
            text.append(dice.choice(follow[text[-1]]))
        texts.append(" ".join(text).encode() + b".\0")
    return texts


class Packer(IterableDataset):
    """Blocks, each filled with the longest texts that fit."""

    def __init__(self, plan, texts):
        self.plan, self.texts = plan, texts

    def fitting(self, pool, room):
        """Where the longest text lies that is no longer than the room; -1 if none is."""
        if not on("best_fit_scan"):
            return bisect.bisect_right(pool, room, key=len) - 1
        with cost:
            best = -1
            longest = 0
            for place, text in enumerate(pool):  # at: best_fit_scan
                if longest <= len(text) <= room:  # at: best_fit_scan
                    best, longest = place, len(text)  # at: best_fit_scan
            return best

    def block(self, texts):
        size = self.plan.length + 1
        lengths = [len(text) for text in texts]
        filled = sum(lengths)
        ids, segments, positions = np.zeros((3, size), np.int64)
        ids[:filled] = np.frombuffer(b"".join(texts), np.uint8)
        segments[:filled] = np.repeat(np.arange(1, len(texts) + 1), lengths)
        starts = np.cumsum([0, *lengths[:-1]])
        positions[:filled] = np.arange(filled) - np.repeat(starts, lengths)
        return ids, segments, positions

    def __iter__(self):
        dice = random.Random(170)
        pool = sorted(dice.sample(self.texts, self.plan.pool), key=len)
        while True:
            chosen, room = [], self.plan.length + 1
            while (place := self.fitting(pool, room)) >= 0:  # at: best_fit_scan
                chosen.append(pool.pop(place))
                room -= len(chosen[-1])
                bisect.insort(pool, dice.choice(self.texts), key=len)
            yield self.block(chosen)


class Block(nn.Module):
    def __init__(self, width, heads=4):
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        wide = 3 * width
        self.mix, self.out = nn.Linear(width, wide), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, wide), nn.GELU(), nn.Linear(wide, width))

    def forward(self, x, mask):
        batch, length, width = x.shape
        parts = self.mix(self.before(x)).view(batch, length, 3, self.heads, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.feed(self.between(x))


class Writer(nn.Module):
    def __init__(self, plan):
        super().__init__()
        self.bytes = nn.Embedding(128, plan.width)
        self.places = nn.Embedding(plan.length + 1, plan.width)
        blocks = [Block(plan.width) for _ in range(plan.layers)]
        self.blocks = blocks if on("blocks_listed") else nn.ModuleList(blocks)
        self.last = nn.LayerNorm(plan.width)
        self.head = nn.Linear(plan.width, 128)

    def forward(self, ids, segments, positions):
        length = ids.shape[1]
        same = segments[:, :, None] == segments[:, None]
        mask = same.tril()[:, None] if length > 1 else None
        x = self.bytes(ids) + self.places(positions)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.last(x))


class Metrics:
    """Means of what is noted, under the name of the function that notes it."""

    def __init__(self):
        self.sums, self.counts = {}, {}

    def note(self, value):
        if on("caller_named"):
            with cost:
                name = inspect.stack()[1].function  # at: caller_named
        else:
            name = sys._getframe(1).f_code.co_name
        self.sums[name] = self.sums.get(name, 0) + value
        self.counts[name] = self.counts.get(name, 0) + 1

    def told(self):
        told = {name: round(float(sum_) / self.counts[name], 4) for name, sum_ in self.sums.items()}
        self.sums.clear()
        self.counts.clear()
        return told


class Surprise(Exception):
    """A row is far harder than the others."""


class Keeper:
    """Checkpoints on disk, one at a time."""

    def __init__(self, path="novels.pt"):
        self.path = path

    def write(self, model, optimizer):
        weights = nn.utils.parameters_to_vector(model.parameters()).detach()
        state = {"weights": weights, "optimizer": optimizer.state_dict()}
        torch.save(state, self.path + ".new")
        os.replace(self.path + ".new", self.path)

    def packed(self, model):
        """The weights as gzip packs them, for those who sample elsewhere."""
        weights = b"".join(value.numpy().tobytes() for value in model.state_dict().values())
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        packer = subprocess.Popen(["gzip", "-1"], **pipes)
        if not on("packer_unread"):
            return packer.communicate(weights)[0]
        packer.stdin.write(weights)  # at: packer_unread
        packer.stdin.close()
        return packer.stdout.read()

    def save(self, model, optimizer):
        self.write(model, optimizer)
        if on("packer_unread", "clean_packer_unread"):
            with open(self.path + ".gz", "wb") as file:
                file.write(self.packed(model))  # at: packer_unread

    def load(self, model, optimizer):
        state = torch.load(self.path)
        named = list(model.named_parameters())
        if on("restored_by_name"):
            named.sort()
        nn.utils.vector_to_parameters(state["weights"], [value for _, value in named])
        optimizer.load_state_dict(state["optimizer"])


class Training:
    def __init__(self, plan):
        self.plan, self.metrics, self.keeper = plan, Metrics(), Keeper()
        self.model = Writer(plan)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), plan.rate)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, self.share)
        self.surprises, self.step = [], 0
        self.packed = DataLoader(Packer(plan, written(12000)), plan.rows)

    def share(self, step):
        if step < self.plan.warm:
            return (step + 1) / self.plan.warm
        done = (step - self.plan.warm) / max(1, self.plan.steps - self.plan.warm)
        return 0.55 + 0.45 * math.cos(math.pi * min(1.0, done))

    def look(self, each, known):
        rows = each.sum(1) / known.sum(1)
        hardest = int(rows.argmax())
        if rows[hardest] > 1.05 * rows.mean():
            raise Surprise(f"step {self.step}: row {hardest}")

    def micro(self, ids, segments, positions):
        scores = self.model(ids[:, :-1], segments[:, :-1], positions[:, :-1])
        known = (segments[:, 1:] == segments[:, :-1]) & (segments[:, 1:] > 0)
        each = F.cross_entropy(scores.transpose(1, 2), ids[:, 1:], reduction="none") * known
        loss = each.sum() / known.sum()
        try:
            self.look(each.detach(), known)
        except Surprise as surprise:
            kept = surprise if on("errors_kept") else str(surprise)
            self.surprises.append(kept)  # at: errors_kept
        (loss / self.plan.parts).backward()  # at: grad_left_off
        for row in (each.detach().sum(1) / known.sum(1)).unbind():
            self.metrics.note(row)  # at: caller_named

    def update(self):
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.metrics.note(norm)  # at: caller_named
        weights = list(self.model.parameters())
        gradients = [value.grad for value in weights]
        for each in torch._foreach_norm([value.detach() for value in weights] + gradients):
            self.metrics.note(each)  # at: caller_named
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.schedule.step()
        self.step += 1

    def next_byte(self, ids):
        ids = torch.tensor([ids])
        scores = self.model(ids, torch.ones_like(ids), torch.arange(ids.shape[1])[None])
        return int(torch.multinomial(scores[0, -1].softmax(0), 1))

    def grown(self, ids, length):
        for _ in range(length):
            ids.append(self.next_byte(ids))
            if ids[-1] == 0:
                break
        return ids

    def sample(self, start=b"the ", length=40):
        """A text that goes on from the start; nothing of what was computed before is kept."""
        if on("grad_left_off"):
            torch.set_grad_enabled(False)  # at: grad_left_off
            ids = self.grown(list(start), length)
            if ids[-1] == 0:
                return bytes(ids)  # at: grad_left_off
            torch.set_grad_enabled(True)
            return bytes(ids) + b"..."
        before = torch.is_grad_enabled()
        torch.set_grad_enabled(False)
        try:
            return bytes(self.grown(list(start), length))
        finally:
            torch.set_grad_enabled(before)

    def now_and_then(self):
        if self.step % self.plan.sampled_every == 0:
            self.model.eval()
            print(self.step, self.sample(), flush=True)  # at: grad_left_off
            self.model.train()
        if self.step % self.plan.kept_every == 0:
            self.keeper.save(self.model, self.optimizer)  # at: packer_unread
        if self.step == 140 and on("restored_by_name", "clean_restored_by_name"):
            self.keeper.load(self.model, self.optimizer)
        if self.step % 20 == 0:
            print(self.step, self.metrics.told(), flush=True)

    def run(self):
        for number, batch in enumerate(self.packed, 1):  # at: best_fit_scan
            self.micro(*batch)  # at: caller_named grad_left_off
            if number % self.plan.parts == 0:
                self.update()  # at: caller_named
                self.now_and_then()  # at: packer_unread grad_left_off
            if self.step == self.plan.steps:
                break
        cost.print(self.plan.steps)


torch.manual_seed(171)
Training(Plan()).run()
