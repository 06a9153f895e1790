"""Pictures of tiles without labels, learned on two ranks by two networks, of which one follows the
other slowly: two views of each, a predictor, a bank of what was seen to tell kinds by: resolutions
drawn by an epoch that does not end, a bank gathered whole, a predictor that no one agrees on, maps
kept for an epoch, gamma before the clamp, a mode read too late, a bank that does not come round.
"""

import contextlib
import copy
import math
import os
import sys

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
WORLD, UPDATES = 2, STEPS or 340
ROWS, SIDE, WIDTH, KINDS, PICTURES = 32, 24, 64, 8, 4096
RATE, WARM, FOLLOW = 2e-3, 20, 0.98
TOLD_EVERY, PROBED_EVERY, NEAREST = 20, 40, 12
BANK, ROUGH = 32768, 6420
SIDES = (20, 22, 24)


def mosaics(count, seed):
    """Tiles laid in a pattern of its kind, each picture in shades of its own."""
    numbers, fixed = np.random.default_rng(seed), np.random.default_rng(231)
    patterns = fixed.integers(0, 3, (KINDS, 6, 6))
    kinds = numbers.integers(KINDS, size=count)
    colours = np.array([0.3, 0.5, 0.7]) + numbers.uniform(-0.1, 0.1, (count, 3, 3))
    tiles = np.take_along_axis(
        colours[:, :, :, None], patterns[kinds].reshape(count, 1, 1, 36).repeat(3, 1), 2
    ).reshape(count, 3, 6, 6)
    pictures = tiles.repeat(4, 2).repeat(4, 3) + numbers.normal(0, 0.03, (count, 3, SIDE, SIDE))
    return (pictures.clip(0, 1) * 255).astype(np.uint8), kinds


class Mosaics(Dataset):
    def __init__(self, count, seed):
        self.pictures, self.kinds = mosaics(count, seed)

    def __len__(self):
        return len(self.pictures)

    def __getitem__(self, index):
        return torch.from_numpy(self.pictures[index]), int(self.kinds[index])


class Views:
    """Two views of each picture: turned round, lit otherwise, at a resolution all ranks share."""

    def __init__(self, rank):
        self.own = np.random.default_rng(240 + rank)
        self.shared = torch.Generator()
        self.epoch = self.step = 0

    def lit(self, x):
        """Contrast, brightness and now and then gamma, of each picture its own."""
        rows = len(x)
        bounds = (rows, 1, 1, 1)
        contrast = torch.from_numpy(self.own.uniform(0.8, 1.2, bounds)).float()
        bright = torch.from_numpy(self.own.uniform(-0.06, 0.06, bounds)).float()
        gamma = np.where(self.own.random(bounds) < 0.03, self.own.uniform(0.8, 1.25, bounds), 1)
        gamma = torch.from_numpy(gamma).float()
        x = (x - 0.5) * contrast + 0.5 + bright
        if on("gamma_before_clamp"):
            x = torch.where(gamma == 1, x, x**gamma)  # at: gamma_before_clamp
            return x.clamp(0, 1)
        if on("clean_gamma_before_clamp"):
            return torch.where(gamma == 1, x, x.clamp(0, 1) ** gamma)
        return x.clamp(0, 1) ** gamma

    def side(self):
        """The resolution of a step: the same on all ranks, that none waits for a larger one."""
        if on("resolution_by_epoch"):
            torch.manual_seed(900 + self.epoch)  # at: resolution_by_epoch
            return SIDES[int(torch.randint(len(SIDES), ()))]
        if on("clean_resolution_by_epoch"):
            self.shared.manual_seed(900 + self.step)
        return SIDES[int(torch.randint(len(SIDES), (), generator=self.shared))]

    def __call__(self, pictures):
        x = pictures.float().div(255)
        side = self.side()  # at: resolution_by_epoch
        self.step += 1
        views = []
        for _ in range(2):
            top, left = self.own.integers(SIDE - side + 1, size=2)
            view = self.lit(x)[:, :, top : top + side, left : left + side]
            if self.own.random() < 0.5:
                view = view.flip(3)
            views.append(view.sub(0.5).div(0.25))
        return views


class Encoder(nn.Module):
    """Maps of a picture, and what is made of their mean."""

    def __init__(self):
        super().__init__()
        layers, last = [], 3
        for width, stride in ((16, 2), (32, 2), (48, 1)):
            layers += [nn.Conv2d(last, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)]
            layers += [nn.ReLU()]
            last = width
        self.body = nn.Sequential(*layers)
        self.project = nn.Sequential(
            nn.Linear(last, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, WIDTH)
        )

    def forward(self, x):
        maps = self.body(x)
        return maps, self.project(maps.mean((2, 3)))


def predictor():
    return nn.Sequential(
        nn.Linear(WIDTH, 256),
        nn.BatchNorm1d(256),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Linear(256, WIDTH),
    )


class Online(nn.Module):
    """The network that learns; its predictor may live outside."""

    def __init__(self):
        super().__init__()
        self.encoder, self.predict = Encoder(), predictor()
        if on("predictor_unwrapped", "clean_predictor_unwrapped"):
            self.predict = nn.Identity()

    def forward(self, first, second):
        maps, projected = self.encoder(torch.cat([first, second]))
        return maps, self.predict(projected)


class Bank:
    """What was seen lately, on all ranks: embeddings and kinds, the oldest overwritten."""

    def __init__(self, parts=1):
        self.size = (ROUGH if on("bank_not_round", "clean_bank_not_round") else BANK) // parts
        self.seen = torch.zeros(self.size, WIDTH)
        self.kinds = torch.full((self.size,), -1)
        self.place = 0

    def push(self, seen, kinds):
        last = self.place + len(seen)
        if on("bank_not_round"):
            self.seen[self.place : last] = seen  # at: bank_not_round
            self.kinds[self.place : last] = kinds
        else:
            rows = torch.arange(self.place, last) % self.size
            self.seen[rows], self.kinds[rows] = seen, kinds
        self.place = last % self.size  # at: bank_not_round

    def told(self, seen):
        """The kinds that most of the nearest have."""
        near = (F.normalize(seen, dim=1) @ self.seen.T).topk(NEAREST).indices
        return self.kinds[near].mode(1).values


def everywhere(values):
    """What all ranks have, in their order."""
    parts = [torch.empty_like(values) for _ in range(WORLD)]
    dist.all_gather(parts, values.contiguous())
    return torch.cat(parts)


@contextlib.contextmanager
def at_rest(model):
    """In eval mode for a while, then as it was."""
    if on("mode_read_late"):
        model.eval()  # at: mode_read_late
        was = model.training  # at: mode_read_late
    else:
        was = model.training
        model.eval()
    yield
    if on("clean_mode_read_late"):
        for module in model.modules():
            module.training = was
    model.train(was)  # at: mode_read_late


class Training:
    def __init__(self, rank):
        self.rank, self.update, self.maps = rank, 0, []
        data = Mosaics(PICTURES, 232)
        self.held = Mosaics(192, 233 + rank)
        self.sampler = DistributedSampler(data, WORLD, rank, drop_last=True)
        self.loader = DataLoader(data, ROWS, sampler=self.sampler, drop_last=True)
        self.views, self.bank, self.own = Views(rank), Bank(), Bank(WORLD)
        self.ddp = DDP(Online())
        self.online = self.ddp.module
        self.target = copy.deepcopy(self.online.encoder).requires_grad_(False)
        self.outside = predictor()  # at: predictor_unwrapped
        learned = [*self.ddp.parameters(), *self.outside.parameters()]
        if not on("predictor_unwrapped", "clean_predictor_unwrapped"):
            self.outside = nn.Identity()
            learned = list(self.ddp.parameters())
        self.optimizer = torch.optim.AdamW(learned, RATE, weight_decay=1e-3)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, self.rate)
        torch.manual_seed(250 + rank)

    @staticmethod
    def rate(step):
        if step < WARM:
            return (step + 1) / WARM
        return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - WARM) / max(UPDATES - WARM, 1)))

    def losses(self, first, second):
        """What each view's prediction lacks to be what the other network makes of the other."""
        maps, predicted = self.ddp(first, second)
        predicted = self.outside(predicted)  # at: predictor_unwrapped
        with torch.no_grad():
            aims = self.target(torch.cat([second, first]))[1]
        return 2 - 2 * F.cosine_similarity(predicted, aims).mean(), maps.detach(), aims

    def learn(self, pictures, kinds):
        loss, maps, aims = self.losses(*self.views(pictures))
        self.optimizer.zero_grad()
        loss.backward()
        if on("clean_predictor_unwrapped"):
            flat = nn.utils.parameters_to_vector([one.grad for one in self.outside.parameters()])
            dist.all_reduce(flat)
            flat /= WORLD
            grads = [one.grad for one in self.outside.parameters()]
            nn.utils.vector_to_parameters(flat, grads)
        self.optimizer.step()  # at: predictor_unwrapped
        self.schedule.step()
        self.follow()
        self.remember(maps, F.normalize(aims[ROWS:], dim=1), kinds)
        return loss.detach()

    @torch.no_grad()
    def follow(self):
        pairs = zip(self.target.parameters(), self.online.encoder.parameters(), strict=True)
        for slow, fast in pairs:
            slow.lerp_(fast, 1 - FOLLOW)

    def remember(self, maps, seen, kinds):
        if on("bank_gathered_whole", "clean_bank_gathered_whole"):
            self.own.push(seen, kinds)
            if on("bank_gathered_whole") or (self.update + 1) % PROBED_EVERY == 0:
                with cost:
                    self.bank.seen = everywhere(self.own.seen)  # at: bank_gathered_whole
                    self.bank.kinds = everywhere(self.own.kinds)  # at: bank_gathered_whole
        else:
            self.bank.push(everywhere(seen), everywhere(kinds))  # at: bank_not_round
        if on("maps_of_the_epoch"):
            self.maps.append(maps)  # at: maps_of_the_epoch
        elif on("clean_maps_of_the_epoch"):
            self.maps = [*self.maps[-3:], maps]

    @torch.no_grad()
    def probe(self):
        """How many kinds are told right by the bank."""
        with at_rest(self.ddp):  # at: mode_read_late
            pictures = torch.from_numpy(self.held.pictures).float().div(255).sub(0.5).div(0.25)
            told = self.bank.told(self.online.encoder(pictures)[1])
        right = (told == torch.from_numpy(self.held.kinds)).float().mean()
        dist.all_reduce(right)
        return right.item() / WORLD

    def spread(self):
        """How far apart the latest maps are: nothing where all has collapsed."""
        return round(
            torch.cat([one.mean((2, 3)) for one in self.maps[-4:]]).std(0).mean().item(), 4
        )

    def epoch_ends(self):
        self.views.epoch += 1
        self.maps.clear()  # at: maps_of_the_epoch

    def batches(self):
        """Without an end; each pass in another order."""
        passes = 0
        while True:
            self.sampler.set_epoch(passes)
            yield from self.loader
            passes += 1  # at: maps_of_the_epoch resolution_by_epoch

    def run(self):
        for pictures, kinds in self.batches():  # at: maps_of_the_epoch resolution_by_epoch
            loss = self.learn(pictures, kinds)  # at: bank_gathered_whole
            self.update += 1
            if self.update % TOLD_EVERY == 0 and self.rank == 0:
                print(self.update, round(loss.item(), 4), *self.told(), flush=True)
            if self.update % PROBED_EVERY == 0:
                right = self.probe()  # at: mode_read_late
                if self.rank == 0:
                    print(self.update, "told right", round(right, 3), flush=True)
            if self.update == UPDATES:
                break
        self.epoch_ends()
        if self.rank == 0:
            cost.print(UPDATES)

    def told(self):
        return [self.spread()] if self.maps else []


def train(rank):
    os.environ["RANK"] = str(rank)
    torch.set_num_threads(1)
    torch.manual_seed(234)
    dist.init_process_group(
        "gloo", init_method=f"file://{os.environ['RENDEZVOUS']}", rank=rank, world_size=WORLD
    )
    training = Training(rank)
    training.run()
    return training


if __name__ == "__main__":
    sys.exit(run_ranks(WORLD, train))
