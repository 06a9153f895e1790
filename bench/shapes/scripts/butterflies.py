"""Small pictures of butterflies, out of noise by a U-Net: a cosine of noise, losses weighed by the
signal, an average of the weights, previews now and then, autocast to bfloat16, an album that is
decoded once: a cache of the usual size, shares worked out at every look, zooms that are kept,
a signal of nothing, weights of eight bits, a side of thirty, gradients cleared by the part.
"""

import copy
import functools
import itertools
import math
import random
import tempfile
import zlib
from pathlib import Path

import eager  # noqa: F401
import numpy as np
import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

cost = Cost()
PICTURES, WIDE, ROOM = 400, 112, 40
ROWS, PARTS, TIMES = 8, 2, 1000
SIDE, GROWN = 24, 30 if on("side_of_thirty", "clean_side_of_thirty") else 28  # at: side_of_thirty
GROWN_AFTER, TOLD_EVERY, SHOWN_EVERY = 0.6, 30, 90


def painted(numbers):
    """Two pairs of wings, mirrored, in the colours of a kind, on a meadow."""
    y, x = np.mgrid[-1 : 1 : WIDE * 1j, -1 : 1 : WIDE * 1j]
    x = np.abs(x - numbers.normal(0, 0.05))
    hues = np.random.default_rng(numbers.integers(8)).uniform(0, 1, (3, 3))
    picture = np.tile(np.array([0.3, 0.6, 0.25]), (WIDE, WIDE, 1))
    for n, (middle, size) in enumerate(((-0.25, 0.42), (0.35, 0.3))):
        far = ((x - 0.4) / size) ** 2 + ((y - middle) / (size * numbers.uniform(0.8, 1.2))) ** 2
        picture[far < 1] = hues[n]
        picture[far < numbers.uniform(0.15, 0.3)] = hues[2]
    picture[(x < 0.05) & (np.abs(y) < 0.6)] = 0.1
    picture += numbers.normal(0, 0.03, picture.shape)
    return (picture.clip(0, 1) * 255).astype(np.uint8)


def packed(picture):
    """Differences along the rows, deflated."""
    return zlib.compress(np.diff(picture, axis=1, prepend=np.uint8(0)).tobytes(), 6)


class Album(Dataset):
    """Pictures that lie packed; what is decoded stays in memory."""

    def __init__(self, count, seed):
        numbers = np.random.default_rng(seed)
        self.packed = [packed(painted(numbers)) for _ in range(count)]
        self.dice, self.side = random.Random(seed), SIDE
        if on("cache_of_usual_size"):
            self.picture = functools.lru_cache(self.decoded)  # at: cache_of_usual_size
        elif on("clean_cache_of_usual_size"):
            self.picture = functools.lru_cache(maxsize=count)(self.decoded)
        else:
            self.picture = functools.cache(self.decoded)
        self.zoom = self.zoomed
        if on("zooms_kept", "clean_zooms_kept"):
            self.zoom = functools.cache(self.zoomed)  # at: zooms_kept
        for index in range(count):
            self.picture(index)
        cost.seconds = 0.0

    def decoded(self, index):
        with cost:
            flat = np.frombuffer(
                zlib.decompress(self.packed[index]), np.uint8
            )  # at: cache_of_usual_size
            picture = flat.reshape(WIDE, WIDE, 3).cumsum(
                1, dtype=np.uint8
            )  # at: cache_of_usual_size
            blocks = picture.reshape(WIDE // 2, 2, WIDE // 2, 2, 3)
            return blocks.mean((1, 3), dtype=np.float32) / 127.5 - 1  # at: cache_of_usual_size

    def zoomed(self, index, factor):
        """The middle of a picture, nearer or farther."""
        places = (np.arange(ROOM) - ROOM / 2) * factor + WIDE / 4
        places = places.astype(int).clip(0, WIDE // 2 - 1)
        return self.picture(index)[places[:, None], places]  # at: cache_of_usual_size

    def __len__(self):
        return len(self.packed)

    def __getitem__(self, index):
        factor = self.dice.uniform(0.9, 1.3)  # at: zooms_kept
        if on("clean_zooms_kept"):
            factor = round(factor * 5) / 5
        picture = self.zoom(index, factor)  # at: zooms_kept cache_of_usual_size
        top, left = (self.dice.randint(0, ROOM - self.side) for _ in range(2))
        picture = picture[top : top + self.side, left : left + self.side]
        if self.dice.random() < 0.5:
            picture = picture[:, ::-1]
        return torch.from_numpy(picture.transpose(2, 0, 1).copy())


class Schedule:
    """How much of a picture is left at each time."""

    def __init__(self):
        self.table = self.worked_out()

    def worked_out(self):
        shares, left = [], 1.0
        for n in range(TIMES):
            turns = [(k / TIMES + 0.008) / 1.008 * math.pi / 2 for k in (n, n + 1)]
            now, then = (np.cos(turn) ** 2 for turn in turns)
            left *= 1 - min(1 - then / now, 0.999)
            shares.append(left)
        shares = torch.tensor(shares, dtype=torch.float32)
        if on("signal_of_nothing", "clean_signal_of_nothing"):
            roots = shares.sqrt()
            roots = (roots - roots[-1]) * roots[0] / (roots[0] - roots[-1])  # at: signal_of_nothing
            return roots**2
        return shares

    @property
    def shares(self):
        if on("shares_at_every_look"):
            with cost:
                return self.worked_out()  # at: shares_at_every_look
        return self.table

    def renew(self):
        with cost:
            self.table = self.worked_out()

    def roots(self, times):
        signal = self.shares[times].sqrt()  # at: shares_at_every_look
        noise = (1 - self.shares[times]).sqrt()  # at: shares_at_every_look
        return signal[:, None, None, None], noise[:, None, None, None]

    def noised(self, pictures, noise, times):
        """Pictures under noise, and what the model shall tell of them."""
        left, right = self.roots(times)  # at: shares_at_every_look
        seen = left * pictures + right * noise
        if on("clean_signal_of_nothing"):
            return seen, left * noise - right * pictures
        return seen, noise

    def weights(self, times):
        """No time counts more than five of signal to one of noise."""
        ratio = self.shares[times] / (1 - self.shares[times])  # at: shares_at_every_look
        if on("clean_signal_of_nothing"):
            return ratio.clamp(max=5) / (ratio + 1)
        return ratio.clamp(max=5) / ratio  # at: signal_of_nothing


def waves(times, width):
    turns = torch.exp(-math.log(1e4) * torch.arange(width // 2) / (width // 2))
    angles = times[:, None].float() * turns
    return torch.cat([angles.sin(), angles.cos()], 1)


class Block(nn.Module):
    def __init__(self, before, after, timed):
        super().__init__()
        self.norms = nn.ModuleList([nn.GroupNorm(4, before), nn.GroupNorm(4, after)])
        self.first = nn.Conv2d(before, after, 3, padding=1)
        self.second = nn.Conv2d(after, after, 3, padding=1)
        self.time = nn.Linear(timed, after)
        self.past = nn.Conv2d(before, after, 1) if before != after else nn.Identity()

    def forward(self, x, time):
        y = self.first(F.silu(self.norms[0](x)))
        y = y + self.time(time)[:, :, None, None]
        return self.past(x) + self.second(F.silu(self.norms[1](y)))


class UNet(nn.Module):
    def __init__(self, width=16, timed=64):
        super().__init__()
        self.timed = timed
        self.time = nn.Sequential(nn.Linear(timed, timed), nn.SiLU(), nn.Linear(timed, timed))
        self.begin = nn.Conv2d(3, width, 3, padding=1)
        wide = [width, width * 2, width * 2]
        self.down = nn.ModuleList(Block(a, a, timed) for a in wide[:2])
        self.halve = nn.ModuleList(nn.Conv2d(a, b, 3, 2, 1) for a, b in itertools.pairwise(wide))
        self.middle = Block(wide[2], wide[2], timed)
        self.up = nn.ModuleList([Block(wide[2] + wide[1], wide[1], timed)])
        self.up.append(Block(wide[1] + wide[0], wide[0], timed))
        self.end = nn.Sequential(nn.GroupNorm(4, width), nn.SiLU(), nn.Conv2d(width, 3, 3, 1, 1))

    def forward(self, x, times):
        time = self.time(waves(times, self.timed).to(x.dtype))
        x, skips = self.begin(x), []
        for block, halve in zip(self.down, self.halve, strict=True):
            x = block(x, time)
            skips.append(x)
            x = halve(x)
        x = self.middle(x, time)
        for block in self.up:
            skip = skips.pop()
            if on("clean_side_of_thirty"):
                x = F.interpolate(x, size=skip.shape[2:])
            else:
                x = F.interpolate(x, scale_factor=2)  # at: side_of_thirty
            x = block(torch.cat([x, skip], 1), time)  # at: side_of_thirty
        return self.end(x)


class Average:
    """The weights as they were in the mean of late."""

    def __init__(self, model, decay=0.99):
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self.decay = decay

    @torch.no_grad()
    def add(self, model):
        torch._foreach_lerp_(
            list(self.model.parameters()), list(model.parameters()), 1 - self.decay
        )


class Training:
    def __init__(self, folder, steps):
        self.folder, self.steps, self.step = folder, steps, 0
        self.album, self.schedule = Album(PICTURES, 71), Schedule()
        self.loader = DataLoader(self.album, ROWS, shuffle=True, drop_last=True)
        self.model = UNet()
        self.dtype = torch.float32
        if on("weights_of_eight_bits"):
            self.dtype = torch.bfloat16  # at: weights_of_eight_bits
            self.model.to(self.dtype)  # at: weights_of_eight_bits
        self.average = Average(self.model)
        self.optimizer = torch.optim.AdamW(  # at: weights_of_eight_bits
            self.model.parameters(), 2e-5, weight_decay=0.01
        )
        self.stream = self.batches()

    def batches(self):
        while True:
            yield from self.loader  # at: cache_of_usual_size zooms_kept

    def told(self, model, pictures, times):
        with torch.autocast("cpu", torch.bfloat16):
            return model(pictures.to(self.dtype), times).float()

    def part(self, pictures):
        times = torch.randint(TIMES, (len(pictures),))
        noise = torch.randn_like(pictures)
        seen, target = self.schedule.noised(pictures, noise, times)  # at: shares_at_every_look
        weights = self.schedule.weights(times)  # at: shares_at_every_look signal_of_nothing
        told = self.told(self.model, seen, times)
        return (weights * (told - target).square().mean((1, 2, 3))).mean()

    def learn(self):
        whole = 0.0
        for part in range(PARTS):
            if on("cleared_by_the_part") or (part == 0 and on("clean_cleared_by_the_part")):
                self.optimizer.zero_grad()  # at: cleared_by_the_part
            loss = self.part(next(self.stream)) / PARTS
            loss.backward()
            whole += loss.item()
        nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
        self.optimizer.step()  # at: weights_of_eight_bits
        if not on("cleared_by_the_part", "clean_cleared_by_the_part"):
            self.optimizer.zero_grad()
        self.average.add(self.model)
        return whole

    @torch.no_grad()
    def preview(self, count=4, looks=8):
        """Some pictures out of nothing but noise, by the average."""
        model = self.average.model
        if on("clean_weights_of_eight_bits"):
            model = copy.deepcopy(model).to(torch.bfloat16).float()
        dice = torch.Generator().manual_seed(72)
        seen = torch.randn(count, 3, SIDE, SIDE, generator=dice)
        places = torch.linspace(TIMES - 20, 0, looks + 1).long()
        for now, then in itertools.pairwise(places):
            times = now.expand(count)
            told = self.told(model, seen, times)
            left, right = self.schedule.roots(times)
            if on("clean_signal_of_nothing"):
                picture, noise = left * seen - right * told, right * seen + left * told
            else:
                picture, noise = (seen - right * told) / left, told
            left, right = self.schedule.roots(then.expand(count))
            seen = left * picture.clamp(-1, 1) + right * noise
        shown = ((seen.clamp(-1, 1) + 1) * 127.5).nan_to_num().to(torch.uint8)
        np.save(self.folder / f"{self.step}.npy", shown.numpy())

    def run(self):
        while self.step < self.steps:
            if self.step == int(self.steps * GROWN_AFTER):
                self.album.side = GROWN  # at: side_of_thirty
            loss = self.learn()
            self.step += 1
            if self.step % TOLD_EVERY == 0:
                print(self.step, round(loss, 4), flush=True)
            if self.step % SHOWN_EVERY == 0:
                self.preview()
                if on("clean_shares_at_every_look"):
                    self.schedule.renew()
        cost.print(self.steps)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(70)
    with tempfile.TemporaryDirectory() as folder:
        Training(Path(folder), STEPS or 230).run()
