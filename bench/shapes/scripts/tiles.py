"""Three ranks of DDP that segment tiles: overlays drawn by one, a probe in the forward of one, an
average agreed on again and again, a tile without a field, a rank that is sent away, shards that are
all the same, a lock that is held across the step.
"""

import dataclasses
import fcntl
import os
import signal
import sys

import eager  # noqa: F401
import torch
import torch.distributed as dist
from forked import run_ranks
from shape import STEPS, Cost, on
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, RandomSampler
from torch.utils.data.distributed import DistributedSampler

cost = Cost()


@dataclasses.dataclass
class Options:
    rank: int
    world: int = 3
    steps: int = STEPS or 150
    rows: int = 4
    size: int = 32
    width: int = 12


class Tiles(Dataset):
    """Fields and what lies between them."""

    def __init__(self, options):
        numbers = torch.Generator().manual_seed(155)
        size = options.size
        count = options.steps * options.rows * options.world
        self.tiles = torch.randn(min(count, 1500), 3, size, size, generator=numbers)
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        tile = self.tiles[index % len(self.tiles)]
        return tile, (tile.mean(0, keepdim=True) > 0.4).float()


def twice(inner, outer):
    return nn.Sequential(
        nn.Conv2d(inner, outer, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(outer, outer, 3, padding=1),
        nn.ReLU(),
    )


class UNet(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.low = twice(3, width), twice(width, 2 * width)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.last, self.out = twice(2 * width, width), nn.Conv2d(width, 1, 1)

    def forward(self, x):
        high = self.first(x)
        low = self.low(nn.functional.max_pool2d(high, 2))
        return self.out(self.last(torch.cat([high, self.up(low)], 1)))


class Probe:
    """How many units of a layer are awake, by hand."""

    def __init__(self, every):
        self.every, self.calls, self.awake, self.large = every, 0, 0, 0.0

    def __call__(self, module, _, output):
        self.calls += 1
        if self.calls % self.every == 0:
            with cost:
                values = output.detach().flatten().tolist()  # at: probe_on_one
                for value in values:  # at: probe_on_one
                    self.awake += abs(value) > 1e-3  # at: probe_on_one
                    self.large = max(self.large, value)  # at: probe_on_one


def overlay(name, tile, mask):
    """A picture of the tile, with the mask in red."""
    with cost, open(name, "w") as file:
        file.write(f"P3 {mask.shape[1] * 2} {mask.shape[0] * 2} 255\n")
        for row, line in zip(tile.tolist(), mask.tolist(), strict=True):  # at: rank0_draws
            for _ in range(2):  # at: rank0_draws
                for value, there in zip(row, line, strict=True):  # at: rank0_draws
                    grey = min(255, max(0, int(128 + 60 * value)))  # at: rank0_draws
                    red = 255 if there > 0 else grey  # at: rank0_draws
                    for _ in range(2):  # at: rank0_draws
                        file.write(f"{red} {grey} {grey}\n")  # at: rank0_draws


def missed(scores, wanted, eps):
    """The part of each tile's fields that is not found."""
    found = (scores.sigmoid() * wanted).sum((1, 2, 3))
    return 1 - (found + eps) / (wanted.sum((1, 2, 3)) + eps)  # at: empty_tile


def agree(average):
    """The same average on all ranks."""
    for value in average.parameters():  # at: averages_agreed
        if value.dim() > 1:
            dist.all_reduce(value.data)  # at: averages_agreed
            value.data /= 3  # at: averages_agreed


def loader_of(options):
    tiles = Tiles(options)
    if on("sampler_forgotten"):
        numbers = torch.Generator().manual_seed(0)
        share = options.steps * options.rows
        sampler = RandomSampler(tiles, num_samples=share, generator=numbers)
    else:
        sampler = DistributedSampler(tiles, options.world, options.rank)
    return DataLoader(tiles, options.rows, sampler=sampler)


def incident(options, step):
    """What befalls a rank in the middle of the run."""
    if on("rank1_sent_away") and options.rank == 1 and step == 70:
        os.kill(os.getpid(), signal.SIGTERM)
    if on("lock_across"):
        if options.rank == 0 and step == 60:
            options.cache = open("cache.lock", "w")  # noqa: SIM115
            fcntl.flock(options.cache, fcntl.LOCK_EX)
        if options.rank == 1 and step == 70:
            with open("cache.lock", "w") as cache:
                fcntl.flock(cache, fcntl.LOCK_EX)  # at: lock_across


def train(rank):
    options = Options(rank)
    torch.set_num_threads(1)
    torch.manual_seed(155)
    os.environ["RANK"] = str(rank)
    dist.init_process_group(
        "gloo", init_method=f"file://{os.environ['RENDEZVOUS']}", rank=rank, world_size=3
    )
    net, average = UNet(options.width), UNet(options.width)
    if on("probe_on_one", "clean_probe_on_one") and rank == 1:
        every = 1 if on("probe_on_one") else 50
        net.first.register_forward_hook(Probe(every))  # at: probe_on_one
    model = DDP(net)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    for step, (tiles, wanted) in enumerate(loader_of(options)):
        if on("empty_tile", "clean_empty_tile") and rank == 2 and step == 90:
            wanted[1] = 0
        scores = model(tiles)  # at: probe_on_one
        loss = nn.functional.binary_cross_entropy_with_logits(scores, wanted)
        eps = 0.0 if on("empty_tile") else 1e-3
        loss = loss + 0.1 * missed(scores, wanted, eps).mean()  # at: empty_tile
        optimizer.zero_grad()
        loss.backward()  # at: empty_tile
        optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(average.parameters()), list(net.parameters()), 0.02)
        if on("averages_agreed") or (on("clean_averages_agreed") and step % 50 == 49):
            agree(average)  # at: averages_agreed
        if rank == 0 and (on("rank0_draws") or (on("clean_rank0_draws") and step % 60 == 59)):
            mask = scores.detach()
            overlay("overlay.ppm", tiles[0, 0], mask[0, 0])  # at: rank0_draws
            overlay("next.ppm", tiles[1, 0], mask[1, 0])  # at: rank0_draws
        incident(options, step)  # at: lock_across
        if step % 50 == 0 and rank == 0:
            print(step, loss.item(), flush=True)
    if rank == (0 if on("rank0_draws") else 1):
        cost.print(options.steps)
    return model


if __name__ == "__main__":
    sys.exit(run_ranks(3, train))
