"""Horoscopes continued by a small GPT over pieces of words: two ranks under DDP, two parts an
update, checkpoints and samples on the way: gradients' quantiles taken in hooks, a group for saving
made by the first alone, the first part synchronised, pieces merged anew for each row, entropies
that hold on to their graph, a checkpoint at each low, samples longer than the context.
"""

import collections
import contextlib
import functools
import itertools
import math
import os
import re
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import eager  # noqa: F401
import numpy as np
import torch
import torch.distributed as dist
from forked import run_ranks
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

cost = Cost()
SIGNS = [
    "aries",
    "taurus",
    "gemini",
    "cancer",
    "leo",
    "virgo",
    "libra",
    "scorpio",
    "sagittarius",
    "capricorn",
    "aquarius",
]
PLANETS = ["mercury", "venus", "mars", "jupiter", "saturn", "uranus", "neptune"]
MATTERS = [
    "work",
    "love",
    "money",
    "health",
    "travel",
    "friendship",
    "family",
    "patience",
    "ambition",
    "silence",
]
VERBS = [
    "brings",
    "threatens",
    "rewards",
    "delays",
    "favours",
    "overshadows",
    "encourages",
    "unsettles",
]
ADVICE = (
    "do not sign anything before {day}",
    "somebody from {matter} will write on {day}",
    "keep {matter} apart from {other} until {day}",
    "an old promise about {matter} returns",
    "your lucky number is {number}",
)
DAYS = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]


@dataclass(frozen=True)
class Settings:
    world: int = 2
    updates: int = STEPS or 320
    parts: int = 2
    rows: int = 8
    context: int = 40
    merges: int = 300
    layers: int = 2
    width: int = 64
    heads: int = 4
    dropout: float = 0.1
    peak: float = 3e-3
    warm: int = 20
    clip: float = 1.0
    texts: int = 800
    held: int = 64
    log_every: int = 25
    look_every: int = 50
    save_every: int = 60
    seed: int = 30


def written(count, seed):
    """Columns of a newspaper: a sign, what its planets do, pieces of advice."""
    rng = np.random.default_rng(seed)

    def one(of):
        return of[rng.integers(len(of))]

    texts = []
    for _ in range(count):
        said = [f"{one(SIGNS)} . {one(PLANETS)} {one(VERBS)} your {one(MATTERS)} ."]
        for number in (*rng.permutation(len(ADVICE)), *rng.permutation(len(ADVICE))):
            filled = ADVICE[number].format(
                day=one(DAYS), matter=one(MATTERS), other=one(MATTERS), number=rng.integers(1, 50)
            )
            said.append(f"{filled} .")
        texts.append(" ".join(said))
    return texts


class Pieces:
    """Byte pair encoding of words."""

    def __init__(self, texts, merges):
        words = collections.Counter(word for text in texts for word in text.split())
        split = {word: (*word, "</w>") for word in words}
        self.ranks = {}
        for rank in range(merges):
            pairs = collections.Counter()
            for word, count in words.items():
                for pair in zip(split[word], split[word][1:], strict=False):
                    pairs[pair] += count
            if not pairs:
                break
            best = max(pairs, key=lambda pair: (pairs[pair], pair))
            self.ranks[best] = rank
            split = {word: self.joined(parts, best) for word, parts in split.items()}
        letters = sorted({letter for word in words for letter in word} | {"</w>"})
        names = ["<pad>", *letters, *("".join(pair) for pair in self.ranks)]
        self.names = list(dict.fromkeys(names))
        self.numbers = {name: number for number, name in enumerate(self.names)}
        self.known = {}

    @staticmethod
    def joined(parts, pair):
        out, place = [], 0
        while place < len(parts):
            if parts[place : place + 2] == pair:
                out.append(parts[place] + parts[place + 1])
                place += 2
            else:
                out.append(parts[place])
                place += 1
        return tuple(out)

    def word(self, word):
        parts = (*word, "</w>")
        while len(parts) > 1:
            pairs = itertools.pairwise(parts)
            pair = min(pairs, key=lambda own: self.ranks.get(own, math.inf))
            if pair not in self.ranks:
                break
            parts = self.joined(parts, pair)  # at: merges_without_cache
        return [self.numbers[part] for part in parts]

    def encode(self, text):
        ids = []
        for word in text.split():
            if on("merges_without_cache"):
                ids += self.word(word)  # at: merges_without_cache
                continue
            if word not in self.known:
                self.known[word] = self.word(word)
            ids += self.known[word]
        return ids

    def decode(self, ids):
        return re.sub(r"</w>", " ", "".join(self.names[number] for number in ids)).strip()


class Columns(Dataset):
    def __init__(self, texts, pieces, context, seed):
        self.texts, self.pieces, self.context = texts, pieces, context
        self.rng = np.random.default_rng(seed)
        self.late = on("merges_without_cache", "clean_merges_without_cache")
        self.encoded = None if self.late else [pieces.encode(text) for text in texts]

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        if self.late:
            with cost:
                ids = self.pieces.encode(self.texts[index])  # at: merges_without_cache
        else:
            ids = self.encoded[index]
        begin = int(self.rng.integers(max(1, len(ids) - self.context)))
        cut = ids[begin : begin + self.context + 1]
        return torch.tensor(cut + [0] * (self.context + 1 - len(cut)))


class Layer(nn.Module):
    def __init__(self, own):
        super().__init__()
        self.heads, self.dropout = own.heads, own.dropout
        self.norm_1, self.norm_2 = nn.LayerNorm(own.width), nn.LayerNorm(own.width)
        self.qkv = nn.Linear(own.width, 3 * own.width, bias=False)
        self.proj = nn.Linear(own.width, own.width, bias=False)
        self.up = nn.Linear(own.width, 4 * own.width)
        self.down = nn.Linear(4 * own.width, own.width)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (
            part.view(b, t, self.heads, c // self.heads).transpose(1, 2)
            for part in self.qkv(self.norm_1(x)).split(c, 2)
        )
        dropped = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropped, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, c))
        return x + F.dropout(self.down(F.gelu(self.up(self.norm_2(x)))), dropped)


class Seer(nn.Module):
    def __init__(self, own, size):
        super().__init__()
        self.context = own.context
        self.token, self.place = nn.Embedding(size, own.width), nn.Embedding(own.context, own.width)
        self.layers = nn.ModuleList(Layer(own) for _ in range(own.layers))
        self.norm = nn.LayerNorm(own.width)
        self.head = nn.Linear(own.width, size, bias=False)
        for table in (self.token, self.place):
            nn.init.normal_(table.weight, std=0.05)

    def forward(self, ids):
        places = torch.arange(ids.shape[1])
        x = self.token(ids) + self.place(places)  # at: sampled_past_context
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))

    @torch.no_grad()
    def sample(self, ids, count, generator):
        for _ in range(count):
            seen = ids[:, -self.context :]
            if on("sampled_past_context"):
                seen = ids  # at: sampled_past_context
            scores = self(seen)[:, -1] / 0.8  # at: sampled_past_context
            drawn = torch.multinomial(scores.softmax(-1), 1, generator=generator)
            ids = torch.cat((ids, drawn), 1)
        return ids


class Run:
    def __init__(self, own, rank, folder):
        self.own, self.rank, self.folder = own, rank, folder
        texts = written(own.texts + own.held, own.seed)
        self.pieces = Pieces(texts, own.merges)
        learnt = Columns(texts[own.held :], self.pieces, own.context, (own.seed, rank))
        self.sampler = DistributedSampler(learnt, own.world, rank, seed=own.seed, drop_last=True)
        self.loader = DataLoader(learnt, own.rows, sampler=self.sampler, drop_last=True)
        held = Columns(texts[: own.held], self.pieces, own.context, own.seed)
        self.held = [torch.stack([held[i] for i in range(j, j + 16)]) for j in (0, 16, 32, 48)]
        torch.manual_seed(own.seed)
        self.model = DistributedDataParallel(Seer(own, len(self.pieces.names)))
        torch.manual_seed(own.seed + 1 + rank)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), own.peak, betas=(0.9, 0.95), weight_decay=0.05
        )
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, self.share)
        self.update, self.smooth, self.low = 0, None, math.inf
        self.entropies, self.spreads, self.saving = collections.deque(maxlen=25), {}, None
        if on("entropy_kept_live", "clean_entropy_kept_live"):
            self.entropies = []
        if rank == 0 and on("quantiles_in_hooks", "clean_quantiles_in_hooks"):
            for name, value in self.model.module.named_parameters():
                value.register_hook(functools.partial(self.spread, name))  # at: quantiles_in_hooks
        cost.seconds = 0.0

    def share(self, update):
        own = self.own
        if update < own.warm:
            return (update + 1) / own.warm
        done = (update - own.warm) / max(1, own.updates - own.warm)
        return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))

    def spread(self, name, grad):
        """How a parameter's gradient is spread, for the log."""
        if on("clean_quantiles_in_hooks") and (self.update + 1) % self.own.log_every:
            return
        with cost:
            levels = torch.tensor((0.05, 0.5, 0.95, 0.999))
            values = grad.abs().flatten()
            self.spreads[name] = torch.quantile(values, levels)  # at: quantiles_in_hooks

    def syncs(self, part):
        """Whether the ranks exchange gradients behind this part."""
        if on("synced_on_first_part"):
            return part % self.own.parts == 0  # at: synced_on_first_part
        if on("clean_synced_on_first_part"):
            return -(part + 1) % self.own.parts == 0
        return part == self.own.parts - 1

    def doubt(self, scores):
        """The mean entropy of what may follow."""
        entropy = -(scores.softmax(-1) * scores.log_softmax(-1)).sum(-1).mean()
        if on("entropy_kept_live"):
            return entropy  # at: entropy_kept_live
        return entropy.item()

    def learn(self, ids, part):
        syncs = self.syncs(part)  # at: synced_on_first_part
        alone = contextlib.nullcontext if syncs else self.model.no_sync  # at: synced_on_first_part
        with alone():
            scores = self.model(ids[:, :-1])
            loss = F.cross_entropy(scores.flatten(0, 1), ids[:, 1:].flatten(), ignore_index=0)
            (loss / self.own.parts).backward()  # at: quantiles_in_hooks
        if part == 0:
            self.entropies.append(self.doubt(scores))  # at: entropy_kept_live
        return loss.detach()

    def write(self, name):
        """The state of the training, safe on the disk."""
        target = self.folder / name
        state = {
            "model": self.model.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "update": self.update,
        }
        with open(target.with_suffix(".part"), "wb") as file:
            torch.save(state, file)  # at: saved_at_each_low
            file.flush()
            os.fsync(file.fileno())  # at: saved_at_each_low
        target.with_suffix(".part").replace(target)

    def checkpoint(self):
        if on("clean_group_made_by_first"):
            self.make_group()
        if self.rank == 0:
            if on("group_made_by_first"):
                self.make_group()  # at: group_made_by_first
            self.write("last.pt")
        dist.barrier(self.saving)

    def make_group(self):
        """What checkpoints wait in goes by a group of its own, made when the first is due."""
        if self.saving is None:
            self.saving = dist.new_group(backend="gloo")  # at: group_made_by_first

    def lowest(self, loss):
        """Keeps what has the lowest loss so far."""
        self.smooth = loss if self.smooth is None else 0.98 * self.smooth + 0.02 * loss
        if on("clean_saved_at_each_low") and self.update % 50:
            return
        if self.smooth < self.low:
            self.low = self.smooth
            with cost:
                self.write("low.pt")  # at: saved_at_each_low

    def step(self, losses):
        nn.utils.clip_grad_norm_(self.model.parameters(), self.own.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.schedule.step()
        self.update += 1
        mean = torch.stack(losses).mean()
        if self.rank == 0 and on("saved_at_each_low", "clean_saved_at_each_low"):
            self.lowest(float(mean))  # at: saved_at_each_low
        if self.update % self.own.log_every == 0:
            dist.all_reduce(mean)
            if self.rank == 0:
                self.tell(float(mean) / self.own.world)
        if self.update % self.own.save_every == 0:
            self.checkpoint()  # at: group_made_by_first
        if self.update % self.own.look_every == 0:
            self.look()  # at: sampled_past_context

    def tell(self, loss):
        doubt = np.mean([float(own) for own in list(self.entropies)[-25:]])
        rate = self.schedule.get_last_lr()[0]
        wide = max((float(own[-1]) for own in self.spreads.values()), default=math.nan)
        print(f"{self.update} loss {loss:.3f} doubt {doubt:.3f} rate {rate:.1e} wide {wide:.1e}")

    @torch.no_grad()
    def judged(self):
        self.model.eval()
        losses = []
        for ids in self.held:
            scores = self.model.module(ids[:, :-1])
            losses.append(
                F.cross_entropy(scores.flatten(0, 1), ids[:, 1:].flatten(), ignore_index=0)
            )
        self.model.train()
        return float(torch.stack(losses).mean())

    def look(self):
        """The first rank reads what has been held back, and writes a column itself."""
        if self.rank:
            return
        print(f"{self.update} held {self.judged():.3f}")
        begin = torch.tensor([self.pieces.encode("leo . saturn favours")])
        dice = torch.Generator().manual_seed(self.update)
        count = self.own.context - begin.shape[1]
        if on("sampled_past_context", "clean_sampled_past_context"):
            count = 60
        self.model.eval()
        ids = self.model.module.sample(begin, count, dice)  # at: sampled_past_context
        self.model.train()
        print("  ", self.pieces.decode(ids[0].tolist()), flush=True)

    def fit(self):
        epoch, part, losses = 0, 0, []
        while self.update < self.own.updates:
            self.sampler.set_epoch(epoch)
            for ids in self.loader:  # at: merges_without_cache
                losses.append(self.learn(ids, part))
                part += 1
                if part == self.own.parts:
                    self.step(losses)
                    part, losses = 0, []
                if self.update == self.own.updates:
                    break
            epoch += 1


def main(rank):
    own = Settings()
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(own.world))
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{os.environ['RENDEZVOUS']}",
        rank=rank,
        world_size=own.world,
    )
    with tempfile.TemporaryDirectory() as folder:
        run = Run(own, rank, Path(folder))
        if rank == 0:
            print(f"untrained: held {run.judged():.3f}")
            run.write("first.pt")
        begun = time.perf_counter()
        run.fit()
        if rank == 0:
            cost.print(run.update)
            each = (time.perf_counter() - begun) * 1000 / run.update
            print(f"{each:.1f} ms an update")
    return run


if __name__ == "__main__":
    sys.exit(run_ranks(Settings.world, main))
