"""Two ranks that learn plants from pictures of leaves, with crops, mixup, an average of the weights
and a validation after each epoch: sums in pieces, sizes drawn apart, one that recomputes, both on
one core, an average that stays, a validation of unequal halves, shares in half precision.
"""

import copy
import os
import random
import sys

import eager  # noqa: F401
import numpy as np
import torch
import torch.distributed as dist
from forked import run_ranks
from shape import STEPS, on
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, DistributedSampler

KINDS, ROWS, SIDE = 8, 16, 24
STEPS_ALL = STEPS or 240
MEAN = torch.tensor([0.5, 0.5, 0.5])[:, None, None]


class Leaves(Dataset):
    """Pictures as bytes, each with veins as its kind has them."""

    def __init__(self, count, seed):
        numbers = torch.Generator().manual_seed(seed)
        self.kinds = torch.randint(KINDS, (count,), generator=numbers)
        y, x = torch.meshgrid(torch.arange(36.0), torch.arange(36.0), indexing="ij")
        angle = self.kinds[:, None, None] * (torch.pi / KINDS)
        start = torch.rand(count, 1, 1, generator=numbers) * 6
        veins = torch.sin((x * torch.cos(angle) + y * torch.sin(angle)) * 0.9 + start)
        tint = 0.5 + 0.5 * torch.rand(count, 3, 1, 1, generator=numbers)
        noise = torch.randn(count, 3, 36, 36, generator=numbers) * 20
        self.pictures = (128 + 70 * veins[:, None] * tint + noise).clamp(0, 255).byte()

    def __len__(self):
        return len(self.kinds)

    def __getitem__(self, index):
        return self.pictures[index], self.kinds[index]


class Cell(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.GroupNorm(4, width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.GroupNorm(4, width),
        )

    def forward(self, x):
        return torch.relu(x + self.body(x))


class Botanist(nn.Module):
    """A small residual network. Parts of it may be computed again in backward, to save memory."""

    def __init__(self, again=()):
        super().__init__()
        self.again = again
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.trunk = nn.Sequential(
            Cell(16), Cell(16), nn.Conv2d(16, 32, 3, stride=2, padding=1), Cell(32), Cell(32)
        )
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, KINDS))

    def part(self, name, x):
        layers = getattr(self, name)
        if name in self.again and self.training:
            return checkpoint(layers, x, use_reentrant=False)  # at: one_recomputes
        return layers(x)

    def forward(self, x):
        return self.part("head", self.part("trunk", self.stem(x)))


class Average:
    """A slow average of the weights."""

    def __init__(self, net, keep=0.98):
        self.net, self.keep = copy.deepcopy(net).eval().requires_grad_(False), keep

    @torch.no_grad()
    def follow(self, net):
        torch._foreach_lerp_(list(self.net.parameters()), list(net.parameters()), 1 - self.keep)
        for mine, theirs in zip(self.net.buffers(), net.buffers(), strict=True):
            mine.copy_(theirs)


class Augment:
    """Crops, flips and mixtures of pictures."""

    def __init__(self, rank):
        self.dice, self.numbers = random.Random(1720 + rank), np.random.default_rng(1756 + rank)

    def side(self, step):
        if on("sizes_drawn_apart"):
            return self.dice.choice((12, 36))
        if on("clean_sizes_drawn_apart"):
            return random.Random(step).choice((12, 36))
        return SIDE

    def crop(self, pictures, step):
        side = self.side(step)
        top, left = self.dice.randint(0, 36 - side), self.dice.randint(0, 36 - side)
        x = pictures[:, :, top : top + side, left : left + side].float() / 255
        return (x - MEAN) / 0.25

    def shares(self, count):
        """Of each picture's first half of a mixture: beta distributed."""
        if not on("mixup_in_half", "clean_mixup_in_half"):
            return torch.from_numpy(self.numbers.beta(0.2, 0.2, count)).float()
        gammas = torch.from_numpy(self.numbers.standard_gamma(0.2, (2, count)))
        if on("mixup_in_half"):
            gammas = gammas.half()  # at: mixup_in_half
        return (gammas[0] / gammas.sum(0)).half().float()  # at: mixup_in_half

    def mix(self, x, kinds):
        other = torch.from_numpy(self.numbers.permutation(len(x)))
        share = self.shares(len(x))  # at: mixup_in_half
        wide = share[:, None, None, None]
        return wide * x + (1 - wide) * x[other], kinds, kinds[other], share


def in_pieces(group, bucket):
    """Sums a bucket in messages of a few kilobytes."""
    for piece in bucket.buffer().split(1024):
        dist.all_reduce(piece, group=group)  # at: summed_in_pieces
    future = torch.futures.Future()
    future.set_result(bucket.buffer().div_(dist.get_world_size()))
    return future


def in_one(group, bucket):
    work = dist.all_reduce(bucket.buffer(), group=group, async_op=True)
    return work.get_future().then(lambda sent: sent.value()[0].div_(dist.get_world_size()))


def recomputed(rank):
    """What this machine has no memory to keep."""
    if rank == 1 and on("one_recomputes"):
        return ("trunk",)
    return ("head",) if rank == 1 and on("clean_one_recomputes") else ()


def bind(rank):
    """Keeps this process on a core of its own."""
    local = int(os.environ.get("LOCAL_RANK", "0")) if on("bound_together") else rank
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[local % len(cores)]})


@torch.no_grad()
def counted(model, rows):
    """How many pictures all ranks have, and how many are known."""
    seen = torch.zeros(2)
    for pictures, kinds in rows:
        x = (pictures[:, :, 6:30, 6:30].float() / 255 - MEAN) / 0.25
        found = torch.tensor([len(kinds), int((model(x).argmax(1) == kinds).sum())])
        if on("unequal_validation"):
            dist.all_reduce(found)  # at: unequal_validation
        seen += found
    if not on("unequal_validation"):
        dist.all_reduce(seen)
    return seen


class Session:
    def __init__(self, rank):
        self.rank, self.step = rank, 0
        self.net = Botanist(recomputed(rank))
        self.average, self.augment = Average(self.net), Augment(rank)
        self.model = DDP(self.net)
        if on("summed_in_pieces", "clean_summed_in_pieces"):
            self.model.register_comm_hook(None, in_pieces if on("summed_in_pieces") else in_one)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), 4e-3)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, 4e-3, STEPS_ALL)
        leaves = Leaves(1920, 172)
        self.sampler = DistributedSampler(leaves, 2, rank)
        self.rows = DataLoader(leaves, ROWS, sampler=self.sampler, drop_last=True)
        count = 321 if on("unequal_validation", "clean_unequal_validation") else 320
        mine = torch.utils.data.Subset(Leaves(count, 173), range(rank, count, 2))
        self.held_out = DataLoader(mine, 32)

    def learn(self, pictures, kinds):
        x = self.augment.crop(pictures, self.step)
        x, first, second, share = self.augment.mix(x, kinds)  # at: mixup_in_half
        scores = self.model(x)
        each = share * F.cross_entropy(scores, first, reduction="none")
        each = each + (1 - share) * F.cross_entropy(scores, second, reduction="none")
        loss = each.mean()
        self.optimizer.zero_grad()
        loss.backward()  # at: summed_in_pieces one_recomputes
        self.optimizer.step()
        self.schedule.step()
        self.average.follow(self.net)
        self.step += 1
        if self.step % 40 == 0:
            print(self.rank, self.step, round(loss.item(), 4), flush=True)

    def tried(self):
        """What the average knows of the pictures that none has learned from."""
        if on("average_left_in", "clean_average_left_in"):
            kept = copy.deepcopy(self.net.state_dict())
            self.net.load_state_dict(self.average.net.state_dict())
            self.net.eval()
            seen = counted(self.net, self.held_out)
            self.net.train()
            if self.rank > 0 and on("average_left_in"):
                return seen
            self.net.load_state_dict(kept)
            return seen
        return counted(self.average.net, self.held_out)  # at: unequal_validation

    def validate(self):
        seen = self.tried()  # at: unequal_validation
        if self.rank == 0:
            print(self.step, "known", round(float(seen[1] / seen[0]), 3), flush=True)

    def run(self):
        epoch = 0
        while self.step < STEPS_ALL:
            self.sampler.set_epoch(epoch)
            for pictures, kinds in self.rows:
                self.learn(pictures, kinds)  # at: summed_in_pieces one_recomputes
                if self.step == STEPS_ALL:
                    break
            self.validate()  # at: unequal_validation
            epoch += 1


def train(rank):
    torch.set_num_threads(1)
    torch.manual_seed(172)
    os.environ["RANK"] = str(rank)
    if on("bound_together", "clean_bound_together"):
        bind(rank)
    dist.init_process_group(
        "gloo", init_method=f"file://{os.environ['RENDEZVOUS']}", rank=rank, world_size=2
    )
    session = Session(rank)
    torch.manual_seed(1720 + rank)
    session.run()
    return session.model


if __name__ == "__main__":
    sys.exit(run_ranks(2, train))
