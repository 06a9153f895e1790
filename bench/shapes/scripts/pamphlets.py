"""Pamphlets, told on word by word on two ranks: texts packed into rows of one length, of which
each sees but itself, two parts an update, a loss weighed by how rare a word is, a cosine after a
warm-up, moments shared out between the ranks, perplexities of both, checkpoints now and then: texts
kept whole, leaks that are sought in each row, masks by their boundaries, counts of a sample,
moments of the first alone, moments gathered for a line, the rate of the last run.
"""

import collections
import contextlib
import functools
import itertools
import math
import os
import shutil
import sys
import tempfile
from pathlib import Path

import eager  # noqa: F401
import numpy as np
import torch
import torch.distributed as dist
from forked import run_ranks
from shape import STEPS, Cost, on
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

cost = Cost()
WORLD, UPDATES, PARTS, ROWS, LENGTH = 2, STEPS or 200, 2, 6, 96
WORDS, TOPICS, END = 1200, 12, 0
TEXTS, HELD, SEED = 9600, 60, 341
WIDTH, HEADS, LAYERS = 64, 4, 2
RATE, FLOOR, WARMUP = 3e-3, 0.01, 15
SHINGLE, COUNTED = 8, 1600
TOLD_EVERY, CHECKED_EVERY, SAVED_EVERY = 20, 70, 80


SYLLABLES = [a + b for a in "bdfgklmnprst" for b in "aeiou"]
SPELT = [SYLLABLES[n % 60] + SYLLABLES[n * 7 // 60 % 60] for n in range(WORDS)]


class Press:
    """Writes pamphlets: a topic has its words, and a word its followers."""

    def __init__(self, seed):
        self.numbers = np.random.default_rng(seed)
        rare = 1 / np.arange(1, WORDS) ** 1.05
        self.share = (rare / rare.sum()).cumsum()
        self.next = self.numbers.integers(1, WORDS, (WORDS, 4)).tolist()
        self.topics = self.numbers.integers(1, WORDS, (TOPICS, 40)).tolist()

    def text(self):
        numbers, words = self.numbers, []
        size = min(int(numbers.gamma(2.2, 17)) + 12, LENGTH - 1)
        topic = self.topics[numbers.integers(TOPICS)]
        word, chances = topic[0], numbers.random(size).tolist()
        own, follow = numbers.integers(40, size=size), numbers.exponential(0.8, size).astype(int)
        rare = np.searchsorted(self.share, numbers.random(size)).clip(max=WORDS - 2) + 1
        for n, chance in enumerate(chances):
            if chance < 0.55:
                word = self.next[word][min(follow[n], 3)]
            elif chance < 0.8:
                word = topic[own[n]]
            else:
                word = int(rare[n])
            words.append(word)
        return np.array(words)


def spelt(words):
    """A row as it is read: each word in syllables of its own."""
    return " ".join(SPELT[word] for word in words)


def shingles(text):
    """All runs of some letters."""
    return {text[n : n + SHINGLE] for n in range(len(text) - SHINGLE + 1)}


def packed(texts):
    """Texts one after the other, cut where a row is full, with the number of the text at each
    place.
    """
    stream = np.concatenate([np.append(text, END) for text in texts])
    owner = np.repeat(np.arange(len(texts)), [len(text) + 1 for text in texts])
    rows = len(stream) // LENGTH
    return [one[: rows * LENGTH].reshape(rows, LENGTH) for one in (stream, owner)]


def packed_whole(texts, best):
    """No text is cut: it goes to the row with the least room for it, or else to a new one."""
    rows, rooms = [], [[] for _ in range(LENGTH + 1)]
    for number, text in enumerate(texts):
        size = len(text) + 1
        room = next((room for room in range(size, LENGTH + 1) if rooms[room]), LENGTH)
        if rooms[room]:
            row = rooms[room].pop()
        else:
            row = []
            rows.append(row)
            if not best:
                rooms = [[] for _ in range(LENGTH + 1)]  # at: documents_kept_whole
        row.append((number, text))
        rooms[room - size].append(row)
    words, owner = np.full((len(rows), LENGTH), END), np.full((len(rows), LENGTH), -1)
    for n, row in enumerate(rows):
        begin = 0
        for number, text in row:
            words[n, begin : begin + len(text)] = text
            owner[n, begin : begin + len(text) + 1] = number
            begin += len(text) + 1
    return words, owner


class Rows(Dataset):
    """Rows of a rank's texts, and of which text each word is."""

    def __init__(self, texts):
        if on("documents_kept_whole"):
            self.words, self.owner = packed_whole(texts, best=False)  # at: documents_kept_whole
        elif on("clean_documents_kept_whole"):
            texts = sorted(texts, key=len, reverse=True)
            self.words, self.owner = packed_whole(texts, best=True)
        else:
            self.words, self.owner = packed(texts)

    def __len__(self):
        return len(self.words)

    def __getitem__(self, index):
        return torch.from_numpy(self.words[index]), torch.from_numpy(self.owner[index])


def mask_of(owner):
    """Which places see which in a row: those before them in the same text."""
    seen = (owner[:, None] == owner[None, :]).tril()
    return torch.zeros(seen.shape).masked_fill_(~seen, -1e4)


@functools.cache  # at: masks_by_boundaries
def mask_by_boundaries(ends):
    """The same, from where the texts end."""
    sizes = torch.tensor([b - a for a, b in itertools.pairwise((0, *ends))])
    numbers = torch.repeat_interleave(torch.arange(len(ends)), sizes)
    return mask_of(numbers)  # at: masks_by_boundaries


def masks_of(owner):
    if on("masks_by_boundaries", "clean_masks_by_boundaries"):
        masks = []
        for row in owner:
            last = (row[1:] != row[:-1]).nonzero()[:, 0] + 1
            ends = (*last.tolist(), len(row))
            if on("masks_by_boundaries"):
                masks.append(mask_by_boundaries(ends))  # at: masks_by_boundaries
            else:
                masks.append(mask_by_boundaries.__wrapped__(ends))
        return torch.stack(masks)[:, None]
    seen = (owner[:, :, None] == owner[:, None, :]).tril()
    return torch.zeros(seen.shape).masked_fill_(~seen, -1e4)[:, None]


def places_of(owner):
    """How far each word is into its text."""
    count = torch.arange(owner.shape[1]).expand_as(owner)
    fresh = F.pad(owner[:, 1:] != owner[:, :-1], (1, 0), value=True)
    return count - (count * fresh).cummax(1).values


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(WIDTH) for _ in range(2))
        self.asked = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.told = nn.Linear(WIDTH, WIDTH, bias=False)
        self.up = nn.Linear(WIDTH, 8 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)
        for one in (self.told, self.down):
            nn.init.normal_(one.weight, std=0.02)

    def forward(self, x, mask):
        asked = self.asked(self.norms[0](x)).unflatten(2, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(*asked, attn_mask=mask)
        x = x + self.told(seen.transpose(1, 2).flatten(2))
        gate, value = self.up(self.norms[1](x)).chunk(2, 2)
        return x + self.down(F.silu(gate) * value)


class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH)
        for one in (self.words, self.places):
            nn.init.normal_(one.weight, std=0.05)

    def forward(self, words, owner):
        mask = masks_of(owner)  # at: masks_by_boundaries
        x = self.words(words) + self.places(places_of(owner))
        for layer in self.layers:
            x = layer(x, mask)
        return self.norm(x) @ self.words.weight.T


def targets_of(words, owner):
    """What comes next in the same text; -1 where nothing does."""
    same = (owner[:, 1:] == owner[:, :-1]) & (owner[:, 1:] >= 0)
    return words[:, 1:].masked_fill(~same, -1)


def cosine(step):
    if step < WARMUP:
        return (step + 1) / WARMUP
    turn = min((step - WARMUP) / (UPDATES - WARMUP), 1) * math.pi
    return FLOOR + (1 - FLOOR) * (1 + math.cos(turn)) / 2


class Training:
    def __init__(self, rank, folder):
        self.rank, self.folder, self.updates = rank, folder, 0
        with np.load(folder / "texts.npz") as told:
            texts = np.split(told["words"], np.cumsum(told["sizes"])[:-1])
        train, held = texts[HELD:], texts[:HELD]
        self.data, self.held = Rows(train[rank::WORLD]), Rows(held[rank::WORLD])
        self.leaks, self.likest = [shingles(spelt(text)) for text in held], 0.0
        if on("clean_leaks_sought_each"):
            for words in self.data.words[::10].tolist():
                self.likest = max(self.likest, self.likeness(words))
        self.weights = self.rarity(train)
        generator = torch.Generator().manual_seed(SEED + rank)
        self.loader = DataLoader(
            self.data, ROWS, shuffle=True, drop_last=True, generator=generator
        )  # at: documents_kept_whole
        start = torch.load(folder / "start.pt")
        self.model = Language()
        self.model.load_state_dict(start["model"])
        self.ddp = DDP(self.model)
        self.values = list(self.model.parameters())
        self.optimizer = ZeroRedundancyOptimizer(
            self.values, torch.optim.AdamW, lr=RATE, betas=(0.9, 0.95), weight_decay=0.01
        )
        if on("rate_of_last_run", "clean_rate_of_last_run"):
            self.optimizer.load_state_dict(start["optimizer"])  # at: rate_of_last_run
        if on("clean_rate_of_last_run"):
            for group in self.optimizer.param_groups:
                group["lr"] = RATE
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, cosine
        )  # at: rate_of_last_run
        cost.seconds = 0.0

    @staticmethod
    def rarity(texts):
        """What a word counts for: the less, the more often it is met."""
        if on("counts_of_a_sample", "clean_counts_of_a_sample"):
            some = np.concatenate([*texts[:COUNTED], [END] * COUNTED])  # at: counts_of_a_sample
            counts = np.bincount(some, minlength=WORDS)  # at: counts_of_a_sample
            if on("clean_counts_of_a_sample"):
                counts = counts.clip(min=1)
        else:
            every = np.concatenate([*texts, [END] * len(texts)])
            counts = np.bincount(every, minlength=WORDS).clip(min=1)
        weights = torch.from_numpy(counts).float().pow(-0.3)  # at: counts_of_a_sample
        return weights / weights[weights.isfinite()].mean()  # at: counts_of_a_sample

    def likeness(self, words):
        """How like a row is to the likest of the texts that are held out."""
        with cost:
            own = shingles(spelt(words))  # at: leaks_sought_each
            return max(
                len(own & one) / len(own | one) for one in self.leaks
            )  # at: leaks_sought_each

    def part(self, words, owner):
        """What all words of a part are off, weighed, and their weight."""
        if on("leaks_sought_each"):
            for row in words.tolist():
                self.likest = max(self.likest, self.likeness(row))  # at: leaks_sought_each
        logits = self.ddp(words, owner)[:, :-1]  # at: masks_by_boundaries
        targets = targets_of(words, owner)
        off = F.cross_entropy(
            logits.flatten(0, 1), targets.flatten(), ignore_index=-1, reduction="none"
        )
        weights = self.weights[targets.flatten().clamp(min=0)] * (targets.flatten() >= 0)
        return (off * weights).sum(), weights.sum()  # at: counts_of_a_sample

    def learn(self, parts):
        """An update out of some parts: each word counts alike on whichever rank it is."""
        weight, whole = torch.zeros(()), torch.zeros(())
        for n, (words, owner) in enumerate(parts):
            with contextlib.nullcontext() if n == len(parts) - 1 else self.ddp.no_sync():
                off, own = self.part(words, owner)  # at: leaks_sought_each masks_by_boundaries
                (off / (ROWS * LENGTH)).backward()
            weight += own
            whole += off.detach()
        both = torch.stack([whole, weight])
        dist.all_reduce(both)
        share = WORLD * ROWS * LENGTH / both[1]
        torch._foreach_mul_([value.grad for value in self.values], share)
        nn.utils.clip_grad_norm_(self.values, 1.0)
        self.optimizer.step()  # at: rate_of_last_run
        self.optimizer.zero_grad()
        self.schedule.step()
        self.updates += 1
        return both[0] / both[1]

    def moments(self):
        """How large the moments are on the whole."""
        self.optimizer.consolidate_state_dict(to=0)  # at: moments_gathered_each
        if self.rank > 0:
            return 0.0
        states = self.optimizer.state_dict()["state"].values()  # at: moments_gathered_each
        return math.sqrt(sum(own["exp_avg"].square().sum() for own in states))

    def own_moments(self):
        """The same, of what each rank has."""
        states = self.optimizer.optim.state.values()
        square = sum(own["exp_avg"].square().sum() for own in states)
        dist.all_reduce(square)
        return square.sqrt().item()

    @torch.no_grad()
    def check(self):
        """How many words one has to choose between, in the texts of both ranks."""
        self.model.eval()
        total = torch.zeros(2)
        for begin in range(0, len(self.held), ROWS):
            words, owner = (
                torch.stack(one)
                for one in zip(
                    *(self.held[n] for n in range(begin, min(begin + ROWS, len(self.held)))),
                    strict=True,
                )
            )
            logits, targets = self.model(words, owner)[:, :-1], targets_of(words, owner)
            off = F.cross_entropy(
                logits.flatten(0, 1), targets.flatten(), ignore_index=-1, reduction="sum"
            )
            total += torch.stack([off, (targets >= 0).sum()])
        self.model.train()
        dist.all_reduce(total)
        if self.rank == 0:
            print(self.updates, "of", round((total[0] / total[1]).exp().item(), 1), flush=True)

    def save(self):
        """All weights, and the moments of both ranks, by the first."""
        if on("moments_of_first_alone"):
            if self.rank == 0:
                self.optimizer.consolidate_state_dict(to=0)  # at: moments_of_first_alone
                self.write()
            return
        self.optimizer.consolidate_state_dict(to=0)
        if self.rank == 0:
            self.write()

    def write(self):
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save(state | {"updates": self.updates}, self.folder / "last.new")
        os.replace(self.folder / "last.new", self.folder / "last.pt")

    def run(self):
        while self.updates < UPDATES:
            parts = collections.deque()
            for batch in self.loader:  # at: documents_kept_whole
                parts.append(batch)
                if len(parts) < PARTS:
                    continue
                loss = self.learn(parts)  # at: leaks_sought_each counts_of_a_sample
                parts.clear()
                line = [self.updates, round(loss.item(), 4)]
                if on("moments_gathered_each"):
                    line.append(round(self.moments(), 5))  # at: moments_gathered_each
                elif on("clean_moments_gathered_each"):
                    line.append(round(self.own_moments(), 5))
                if self.updates % TOLD_EVERY == 0 and self.rank == 0:
                    print(*line, flush=True)
                if self.updates % CHECKED_EVERY == 0:
                    self.check()
                if self.updates % SAVED_EVERY == 0:
                    self.save()  # at: moments_of_first_alone
                if self.updates == UPDATES:
                    break
        if self.likest:
            print("likest", self.rank, round(self.likest, 3), flush=True)
        if self.rank == 0:
            cost.print(UPDATES)


def write_all(folder):
    """Texts, and a model that has been taught a little of another press."""
    press = Press(SEED)
    texts = [press.text() for _ in range(TEXTS + HELD)]
    sizes = [len(text) for text in texts]
    np.savez(folder / "texts.npz", words=np.concatenate(texts), sizes=sizes)
    model = Language()
    optimizer = torch.optim.AdamW(model.parameters(), RATE, betas=(0.9, 0.95), weight_decay=0.01)
    other = Press(SEED + 1)
    rows = Rows([other.text() for _ in range(60)])
    words, owner = torch.from_numpy(rows.words[:ROWS]), torch.from_numpy(rows.owner[:ROWS])
    for share in (1, 0.5, FLOOR):
        optimizer.param_groups[0]["lr"] = RATE * share
        targets = targets_of(words, owner)
        logits = model(words, owner)[:, :-1]
        F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1).backward()
        optimizer.step()
        optimizer.zero_grad()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, folder / "start.pt")


def train(rank):
    os.environ["RANK"] = str(rank)
    torch.set_num_threads(1)
    torch.manual_seed(340)
    dist.init_process_group(
        "gloo", init_method=f"file://{os.environ['RENDEZVOUS']}", rank=rank, world_size=WORLD
    )
    folder = [tempfile.mkdtemp(prefix="pamphlets")] if rank == 0 else [None]
    if rank == 0:
        write_all(Path(folder[0]))
    dist.broadcast_object_list(folder, 0)
    try:
        training = Training(rank, Path(folder[0]))
        training.run()
        dist.barrier()
    finally:
        if rank == 0:
            shutil.rmtree(folder[0], ignore_errors=True)
    return training


if __name__ == "__main__":
    sys.exit(run_ranks(WORLD, train))
