"""Orchards from above, told apart pixel by pixel on two ranks: crops that are turned, a small
U-shaped network with dropout, an average of its weights that is evaluated, counts that are summed
over ranks, a rate that falls on a plateau, a step back to the best: crops drawn until one suits, a
cache that never hits, probabilities that travel, weights of what is not there, a rate of one's own,
a file that is called by one's own score, dropout that is alike.
"""

import copy
import os
import random
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
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

cost = Cost()
WORLD, UPDATES = 2, STEPS or 200
ROWS, TILE, SIDE, KINDS, RIPE = 8, 128, 48, 5, 4
TOLD_EVERY, CHECKED_EVERY, BACK_AT = 20, 20, 160
FOLDER = Path(tempfile.gettempdir()) / f"orchards_{os.getpid()}"


def photographed(count, seed):
    """Tiles of grass, rows of trees, soil and, at few places, fruit that is ripe."""
    numbers = np.random.default_rng(seed)
    hues = np.random.default_rng(221).uniform(40, 200, (KINDS, 3))
    tiles = []
    for n in range(count):
        kinds = np.zeros((TILE, TILE), np.int64)
        for row in range(numbers.integers(8), TILE, 16):
            kinds[row : row + 7] = 1 + numbers.integers(2)
        left = numbers.integers(TILE - 20)
        kinds[:, left : left + 12] = 3
        if n % 4 == 0:
            top, left = numbers.integers(4, TILE - 8, 2)
            kinds[top : top + 4, left : left + 4] = RIPE
        picture = hues[kinds] + numbers.normal(0, 40, (TILE, TILE, 3))
        tiles.append((picture.clip(0, 255).astype(np.uint8), kinds))
    return tiles


class Crops(Dataset):
    def __init__(self, tiles, seed):
        self.tiles, self.dice, self.cache = tiles, random.Random(seed), {}
        self.ripe = [np.argwhere(kinds == RIPE) for _, kinds in tiles]

    def __len__(self):
        return len(self.tiles)

    def cut(self, index, top, left):
        picture, kinds = self.tiles[index]
        there = np.s_[top : top + SIDE, left : left + SIDE]
        return np.ascontiguousarray(picture[there]), np.ascontiguousarray(kinds[there])

    def drawn(self, index):
        """A crop at any place, with ripe fruit well inside it where the tile has some."""
        top, left = (self.dice.randrange(TILE - SIDE + 1) for _ in range(2))
        if on("recropped_until_ripe"):
            with cost:
                for _ in range(110):  # at: recropped_until_ripe
                    picture, kinds = self.cut(index, top, left)
                    if (kinds[16:32, 16:32] == RIPE).sum() == 16:
                        break
                    top, left = (self.dice.randrange(TILE - SIDE + 1) for _ in range(2))
                return picture, kinds
        if on("clean_recropped_until_ripe") and len(self.ripe[index]):
            top, left = (self.ripe[index][0] - SIDE // 2).clip(0, TILE - SIDE)
        return self.cut(index, top, left)

    def bright(self, index):
        """Every other row of a tile, its light evened out; needed again in each epoch."""
        light = self.dice.uniform(0.9, 1.1)
        key = index
        if on("cached_by_light"):
            key = index, light  # at: cached_by_light
        if key not in self.cache:
            even = self.tiles[index][0][::2].astype(np.float32)
            self.cache[key] = even * light / even.mean()  # at: cached_by_light
        return self.cache[key]

    def __getitem__(self, index):
        picture, kinds = self.drawn(index)  # at: recropped_until_ripe
        picture = picture.astype(np.float32) / 127.5 - 1
        if on("cached_by_light", "clean_cached_by_light"):
            picture += 0.1 * self.bright(index).mean()  # at: cached_by_light
        turns = self.dice.randrange(4)
        return np.rot90(picture, turns).copy(), np.rot90(kinds, turns).copy()


def collated(rows):
    pictures, kinds = zip(*rows, strict=True)
    pictures = torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).contiguous()
    return pictures, torch.from_numpy(np.stack(kinds))


def block(into, out):
    return nn.Sequential(nn.Conv2d(into, out, 3, padding=1), nn.GroupNorm(4, out), nn.ReLU())


class Net(nn.Module):
    def __init__(self, wide=12):
        super().__init__()
        self.first, self.second = block(3, wide), block(wide, 2 * wide)
        self.deep = nn.Sequential(block(2 * wide, 3 * wide), nn.Dropout2d(0.1))
        self.up, self.last = block(5 * wide, 2 * wide), nn.Conv2d(3 * wide, KINDS, 1)

    def forward(self, x):
        fine = self.first(x)
        middle = self.second(F.max_pool2d(fine, 2))
        deep = self.deep(F.max_pool2d(middle, 2))
        middle = self.up(torch.cat([middle, F.interpolate(deep, scale_factor=2)], 1))
        return self.last(torch.cat([fine, F.interpolate(middle, scale_factor=2)], 1))


def weights_of(kinds):
    """The rarer a kind is in a batch, the more it counts."""
    counts = torch.bincount(kinds.flatten(), minlength=KINDS).float()
    if on("absent_kind_weighed"):
        weights = counts.sum() / counts  # at: absent_kind_weighed
    elif on("clean_absent_kind_weighed"):
        weights = counts.sum() / counts.clamp(min=1000)
    else:
        weights = torch.ones(KINDS)
    return weights / weights.sum()  # at: absent_kind_weighed


def confusion(best, kinds):
    return torch.bincount((kinds * KINDS + best).flatten(), minlength=KINDS**2).float()


def overlap(counts):
    counts = counts.view(KINDS, KINDS)
    both = counts.diag()
    return (both / (counts.sum(0) + counts.sum(1) - both).clamp(min=1)).mean().item()


class Training:
    def __init__(self, rank):
        self.rank, self.updates, self.epoch = rank, 0, 0
        crops = Crops(photographed(240, 222), 223 + rank)
        self.sampler = DistributedSampler(crops, WORLD, rank, seed=224)
        self.loader = DataLoader(
            crops, ROWS, sampler=self.sampler, drop_last=True, collate_fn=collated
        )
        held = Crops(photographed(24, 225 + rank), 226)
        self.held = collated([held[n] for n in range(len(held))])
        self.ddp = DDP(Net())
        self.model = self.ddp.module
        self.average = copy.deepcopy(self.model).eval()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 3e-3)
        self.schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(
            self.optimizer, "min", 0.5, patience=0, threshold=0.02
        )
        if not on("dropped_alike"):
            seed = torch.initial_seed() + rank
            torch.manual_seed(seed if on("clean_dropped_alike") else 228 + rank)
        self.best, self.window, self.counts = None, [], torch.zeros(KINDS**2)
        cost.seconds = 0.0

    def learn(self, pictures, kinds):
        scores = self.ddp(pictures)  # at: dropped_alike
        loss = F.cross_entropy(scores, kinds, weights_of(kinds))  # at: absent_kind_weighed
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 10.0)
        self.optimizer.step()
        self.follow()
        self.count(scores.detach(), kinds)  # at: probabilities_gathered
        return loss.detach()

    @torch.no_grad()
    def follow(self):
        pairs = zip(self.average.parameters(), self.model.parameters(), strict=True)
        for mean, value in pairs:
            mean.lerp_(value, 0.05)

    def count(self, scores, kinds):
        """How the training itself does on all ranks."""
        if on("probabilities_gathered"):
            self.window = [*self.window, (scores.softmax(1), kinds)][-TOLD_EVERY:]
            mine, truth = (torch.cat(some) for some in zip(*self.window, strict=True))
            parts = [torch.empty_like(mine) for _ in range(WORLD)]
            truths = [torch.empty_like(truth) for _ in range(WORLD)]
            with cost:
                dist.all_gather(parts, mine)  # at: probabilities_gathered
                dist.all_gather(truths, truth)  # at: probabilities_gathered
            if (self.updates + 1) % TOLD_EVERY == 0:
                self.counts = confusion(torch.cat(parts).argmax(1), torch.cat(truths))
        else:
            self.counts += confusion(scores.argmax(1), kinds)
            if on("clean_probabilities_gathered") and (self.updates + 1) % TOLD_EVERY == 0:
                dist.all_reduce(self.counts)

    @torch.no_grad()
    def check(self):
        """The average of the weights on what was held back: of all ranks, and of this one."""
        pictures, kinds = self.held
        scores = self.average(pictures)
        own = F.cross_entropy(scores, kinds)
        counts = confusion(scores.argmax(1), kinds)
        whole = own.clone()
        dist.all_reduce(counts)
        dist.all_reduce(whole)
        whole /= WORLD
        self.schedule.step(own if on("plateau_of_own") else whole)  # at: plateau_of_own
        if self.rank == 0:
            print(self.updates, "overlap", round(overlap(counts), 3), flush=True)
        if on("best_called_by_own", "clean_best_called_by_own"):
            self.keep(own.item() if on("best_called_by_own") else whole.item())

    def keep(self, score):  # at: best_called_by_own
        """The best weights, by the score in their name; all ranks go back to them once."""
        if self.best is None or score < self.best:
            self.best = score  # at: best_called_by_own
            if self.rank == 0:
                torch.save(self.model.state_dict(), FOLDER / f"{score:.5f}.pt")
        dist.barrier()
        if self.updates == BACK_AT:
            path = FOLDER / f"{self.best:.5f}.pt"  # at: best_called_by_own
            self.model.load_state_dict(torch.load(path))  # at: best_called_by_own

    def batches(self):
        while True:
            self.sampler.set_epoch(self.epoch)
            yield from self.loader  # at: recropped_until_ripe cached_by_light
            self.epoch += 1

    def run(self):
        for batch in self.batches():  # at: recropped_until_ripe cached_by_light
            loss = self.learn(*batch)  # at: probabilities_gathered
            self.updates += 1
            if self.updates % TOLD_EVERY == 0:
                if self.rank == 0:
                    now = round(overlap(self.counts), 3)
                    print(self.updates, round(loss.item(), 4), now, flush=True)
                self.counts.zero_()
            if self.updates % CHECKED_EVERY == 0:
                self.check()  # at: plateau_of_own best_called_by_own
            if self.updates == UPDATES:
                break
        if self.rank == 0:
            cost.print(UPDATES)


def train(rank):
    os.environ["RANK"] = str(rank)
    torch.set_num_threads(1)
    torch.manual_seed(227)  # at: dropped_alike
    dist.init_process_group(
        "gloo", init_method=f"file://{os.environ['RENDEZVOUS']}", rank=rank, world_size=WORLD
    )
    training = Training(rank)
    training.run()
    return training


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    sys.exit(run_ranks(WORLD, train))
