"""Snowflakes out of noise: a small U-Net that denoises, under DDP on two ranks. Every rank draws
its share of the flakes, two parts make an update, the averaged weights are judged and saved by the
first rank while the other waits, and what is told is the mean over ranks: flakes drawn pixel by
pixel, a distance of Frechet for each update, a judgement through the wrapper, a weight for no
signal, a way back for one loss, copies of all updates, groups by the last part of a name.
"""

import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections import deque
from dataclasses import dataclass, field
from math import atan2, cos, exp, hypot, pi
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
from torch.utils.data import DataLoader, Dataset, DistributedSampler

RANKS = 2
PLAIN = "weight", "bias"
DRAWING = "flake_drawn_by_pixel", "clean_flake_drawn_by_pixel"
ROLLED = "rolled_back_by_own_loss", "clean_rolled_back_by_own_loss"
WEIGHTED = "snr_of_no_signal", "clean_snr_of_no_signal"
cost = Cost()


@dataclass
class Settings:
    updates: int = STEPS or 250
    parts: int = 2
    flakes_per_part: int = 8
    flakes: int = 2560
    kinds: int = 24
    side: int = 16
    fine: int = 2
    width: int = 24
    moments: int = 1000
    rate: float = 1.5e-3
    warm_up: int = 12
    clip: float = 1.0
    average: float = 0.98
    tell_every: int = 25
    judge_every: int = 50
    features: int = 224
    seen: int = 400
    gamma: float = 5.0
    spike: float = 1.6
    settled: int = 60
    seed: int = 3307


class Flakes(Dataset):
    """Six arms with twigs; the kind says how many twigs, and the rest is chance."""

    def __init__(self, settings, seed):
        dice = np.random.default_rng((settings.seed, seed))
        self.settings, count = settings, settings.flakes
        self.kind = dice.integers(0, settings.kinds, count)
        self.size = dice.uniform(0.55, 0.95, count)
        self.sharp = dice.uniform(2.0, 7.0, count)
        self.turn = dice.uniform(0, pi / 3, count)
        side = settings.side * settings.fine
        line = (np.arange(side) + 0.5) * 2 / side - 1
        self.line, (self.y, self.x) = line, np.meshgrid(line, line, indexing="ij")

    def __len__(self):
        return len(self.kind)

    def shades_singly(self, index):
        """How bright each fine pixel is."""
        size, sharp, turn = self.size[index], self.sharp[index], self.turn[index]
        twigs, line = 2 + self.kind[index] % 8, self.line.tolist()
        rows = []
        for y in line:
            row = []
            for x in line:
                far, angle = hypot(x, y) / size, atan2(y, x) - turn  # at: flake_drawn_by_pixel
                arm = abs(cos(3 * angle)) ** sharp  # at: flake_drawn_by_pixel
                twig = 0.5 + 0.5 * cos(twigs * pi * far)  # at: flake_drawn_by_pixel
                row.append(
                    arm * twig / (1 + exp(min(24 * (far - 1), 60)))
                )  # at: flake_drawn_by_pixel
            rows.append(row)
        return np.array(rows)

    def shades(self, index):
        twigs = 2 + self.kind[index] % 8
        far = np.hypot(self.x, self.y) / self.size[index]
        angle = np.arctan2(self.y, self.x) - self.turn[index]
        arm = np.abs(np.cos(3 * angle)) ** self.sharp[index]
        edge = 1 / (1 + np.exp(np.minimum(24 * (far - 1), 60)))
        return arm * (0.5 + 0.5 * np.cos(twigs * pi * far)) * edge

    def __getitem__(self, index):
        side, fine = self.settings.side, self.settings.fine
        with cost if on(*DRAWING) else contextlib.nullcontext():
            if on("flake_drawn_by_pixel"):
                shades = self.shades_singly(index)  # at: flake_drawn_by_pixel
            else:
                shades = self.shades(index)
        flake = shades.reshape(side, fine, side, fine).mean((1, 3)) * 2 - 1
        return torch.from_numpy(flake[None]).float(), int(self.kind[index])


class Residual(nn.Module):
    def __init__(self, width, known):
        super().__init__()
        self.before, self.after = nn.GroupNorm(4, width), nn.GroupNorm(4, width)
        self.first = nn.Conv2d(width, width, 3, padding=1)
        self.second = nn.Conv2d(width, width, 3, padding=1)
        self.told = nn.Linear(known, width)

    def forward(self, x, known):
        h = self.first(F.silu(self.before(x))) + self.told(known)[:, :, None, None]
        return x + self.second(F.silu(self.after(h)))


class Denoiser(nn.Module):
    def __init__(self, settings, signal):
        super().__init__()
        width, known = settings.width, 4 * settings.width
        self.register_buffer("signal", signal)
        self.register_buffer("waves", torch.exp(-torch.linspace(0, 7, known // 2)))
        self.kinds = nn.Parameter(torch.randn(settings.kinds, known) * 0.1)
        self.places = nn.Parameter(torch.randn(1, width, settings.side, settings.side) * 0.02)
        self.when = nn.Sequential(nn.Linear(known, known), nn.SiLU(), nn.Linear(known, known))
        self.enter = nn.Conv2d(1, width, 3, padding=1)
        self.outer, self.outer_back = Residual(width, known), Residual(width, known)
        self.down = nn.Conv2d(width, 2 * width, 2, 2)
        self.inner = nn.ModuleList(Residual(2 * width, known) for _ in range(2))
        self.up = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.leave = nn.Conv2d(width, 1, 3, padding=1)

    def forward(self, noisy, moment, kind):
        angles = moment[:, None] * self.waves
        known = F.silu(self.when(torch.cat([angles.sin(), angles.cos()], 1)) + self.kinds[kind])
        outer = self.outer(self.enter(noisy) + self.places, known)
        inner = self.down(outer)
        for block in self.inner:
            inner = block(inner, known)
        return self.leave(self.outer_back(outer + self.up(inner), known))


def signal_left(settings):
    """How much of the flake's variance is left at each moment, along a cosine."""
    moment = torch.linspace(0, 1, settings.moments + 1, dtype=torch.float64)
    whole = torch.cos((moment + 0.008) / 1.008 * pi / 2) ** 2
    steps = (whole[1:] / whole[:-1]).clamp(min=0.001)
    left = steps.cumprod(0)
    if on(*WEIGHTED):
        root = left.sqrt()
        root = (root - root[-1]) * root[0] / (root[0] - root[-1])
        left = root.square()
    return left.float()


class Average:
    """Weights that follow the model's slowly."""

    def __init__(self, model, pace):
        self.pace = pace
        self.weights = [one.detach().clone() for one in model.parameters()]

    @torch.no_grad()
    def follow(self, model):
        torch._foreach_lerp_(self.weights, list(model.parameters()), 1 - self.pace)

    @torch.no_grad()
    def into(self, model):
        torch._foreach_copy_(list(model.parameters()), self.weights)


def groups(model):
    """Norms and biases are not to decay."""
    decaying, plain = [], []
    for name, one in model.named_parameters():
        if on("groups_by_last_name", "clean_groups_by_last_name"):
            last = name.rsplit(".", 1)[-1]
            if last == "weight" and one.dim() > 1:  # at: groups_by_last_name
                decaying.append(one)  # at: groups_by_last_name
            elif on("clean_groups_by_last_name") or last in PLAIN:  # at: groups_by_last_name
                plain.append(one)  # at: groups_by_last_name
        else:
            (decaying if one.dim() > 1 else plain).append(one)
    return [{"params": decaying, "weight_decay": 0.02}, {"params": plain, "weight_decay": 0.0}]


@dataclass
class Frechet:
    """How far what is denoised lies from the flakes, by means and covariances of features."""

    features: torch.Tensor
    drawn: deque
    true: deque = field(default_factory=deque)

    @classmethod
    def of(cls, settings):
        made = torch.Generator().manual_seed(settings.seed)
        size = settings.side**2, settings.features
        features = torch.randn(size, generator=made) / settings.side
        return cls(features, deque(maxlen=settings.seen), deque(maxlen=settings.seen))

    def see(self, drawn, true):
        self.drawn.extend((drawn.flatten(1) @ self.features).relu())
        self.true.extend((true.flatten(1) @ self.features).relu())

    def distance(self):
        sides = [torch.stack(list(one)).double() for one in (self.drawn, self.true)]
        means = [side.mean(0) for side in sides]
        spreads = [torch.cov(side.T) for side in sides]
        roots = torch.linalg.eigvals(spreads[0] @ spreads[1])  # at: frechet_each_update
        both = roots.real.clamp(min=0).sqrt().sum()
        trace = spreads[0].trace() + spreads[1].trace()
        return ((means[0] - means[1]).square().sum() + trace - 2 * both).item()


class Cloud:
    """The training of one rank."""

    def __init__(self, rank, settings, folder):
        self.rank, self.settings, self.folder, self.update = rank, settings, folder, 0
        torch.manual_seed(settings.seed)
        self.net = Denoiser(settings, signal_left(settings))
        self.model = DistributedDataParallel(self.net)
        torch.manual_seed(settings.seed + 1 + rank)
        self.average = Average(self.net, settings.average)
        self.calm = Denoiser(settings, signal_left(settings)).eval()
        self.optimizer = torch.optim.AdamW(
            groups(self.net), settings.rate
        )  # at: groups_by_last_name
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda update: min(1.0, (update + 1) / settings.warm_up)
        )
        flakes = Flakes(settings, 0)
        self.sampler = DistributedSampler(flakes, RANKS, rank, seed=settings.seed, drop_last=True)
        self.loader = DataLoader(
            flakes, settings.flakes_per_part, sampler=self.sampler, drop_last=True
        )
        held = Flakes(settings, 1)
        self.held = [
            torch.stack(side)
            for side in zip(
                *[(held[i][0], torch.tensor(held[i][1])) for i in range(32)], strict=True
            )
        ]
        self.frechet, self.distance, self.copies = Frechet.of(settings), 0.0, []
        self.usual, self.returns = None, 0

    def parts(self):
        """Flakes for ever, each epoch in an order of its own."""
        epoch = 0
        while True:
            self.sampler.set_epoch(epoch)
            yield from self.loader  # at: flake_drawn_by_pixel
            epoch += 1

    def noised(self, flakes, made=None):
        moment = torch.randint(self.settings.moments, (len(flakes),), generator=made)
        noise = torch.randn(flakes.shape, generator=made)
        left = self.net.signal[moment][:, None, None, None]
        return left.sqrt() * flakes + (1 - left).sqrt() * noise, moment, noise

    def loss(self, said, noise, moment):
        each = (said - noise).square().mean((1, 2, 3))
        if on(*WEIGHTED):
            ratio = self.net.signal[moment] / (1 - self.net.signal[moment])
            if on("snr_of_no_signal"):
                each = each * ratio.clamp(max=self.settings.gamma) / ratio  # at: snr_of_no_signal
            else:
                each = each * (self.settings.gamma / ratio).clamp(max=1.0)
        return each.mean()

    def learn(self, parts):
        total = torch.zeros(())
        for number in range(self.settings.parts):
            flakes, kind = next(parts)  # at: flake_drawn_by_pixel
            noisy, moment, noise = self.noised(flakes)
            last = number == self.settings.parts - 1
            with contextlib.nullcontext() if last else self.model.no_sync():
                said = self.model(noisy, moment, kind)
                loss = self.loss(said, noise, moment) / self.settings.parts  # at: snr_of_no_signal
                loss.backward()
            total += loss.detach()
        if self.rank == 0:
            left = self.net.signal[moment][:, None, None, None].clamp(min=0.01)
            bare = (noisy - (1 - left).sqrt() * said.detach()) / left.sqrt()
            self.frechet.see(bare.clamp(-1, 1), flakes)
        nn.utils.clip_grad_norm_(self.net.parameters(), self.settings.clip)
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad()
        self.average.follow(self.net)
        self.update += 1
        return total

    @torch.no_grad()
    def held_loss(self, model):
        was = model.training
        model.eval()
        flakes, kind = self.held
        noisy, moment, noise = self.noised(flakes, torch.Generator().manual_seed(5))
        loss = F.mse_loss(model(noisy, moment, kind), noise).item()  # at: evaluated_through_wrapper
        model.train(was)
        return loss

    def judge(self):
        """The first rank looks how good the averaged weights are."""
        if on("evaluated_through_wrapper"):
            return self.held_loss(self.model)  # at: evaluated_through_wrapper
        if on("clean_evaluated_through_wrapper"):
            return self.held_loss(self.model.module)
        self.average.into(self.calm)
        return self.held_loss(self.calm)

    def save(self):
        state = {"net": self.net.state_dict(), "average": self.average.weights}
        torch.save(state | {"update": self.update}, self.folder / "cloud.pt")

    def judge_and_save(self):
        dist.barrier()
        if self.rank == 0:
            held = self.judge()  # at: evaluated_through_wrapper
            print(f"{self.update}: held {held:.4f}", flush=True)
            self.save()
        dist.barrier()

    def guard(self, loss):
        """After a bad update, back to the averaged weights."""
        if not on("rolled_back_by_own_loss"):
            loss = loss.clone()
            dist.all_reduce(loss)
            loss /= RANKS
        loss = loss.item()
        self.usual = loss if self.usual is None else 0.95 * self.usual + 0.05 * loss
        bad = loss > self.settings.spike * self.usual  # at: rolled_back_by_own_loss
        if bad and self.update > self.settings.settled:  # at: rolled_back_by_own_loss
            self.average.into(self.net)  # at: rolled_back_by_own_loss
            self.returns += 1

    def copy(self):
        """The averaged weights as they are now, to be mixed afterwards."""
        self.copies.append(
            [one.clone() for one in self.average.weights]
        )  # at: snapshots_of_every_update

    def first_rank(self):
        settings = self.settings
        seldom = self.update % settings.judge_every == 0
        if on("frechet_each_update") or (seldom and on("clean_frechet_each_update")):
            with cost:
                self.distance = self.frechet.distance()  # at: frechet_each_update
        if on("snapshots_of_every_update") or (seldom and on("clean_snapshots_of_every_update")):
            self.copy()  # at: snapshots_of_every_update

    def tell(self, loss):
        mean = loss.clone()
        dist.all_reduce(mean)
        if self.rank == 0:
            rate = self.schedule.get_last_lr()[0]
            told = f"loss {mean.item() / RANKS:.4f} rate {rate:.1e} far {self.distance:.3f}"
            print(f"{self.update}: {told}", flush=True)

    def run(self):
        parts, begun = self.parts(), time.perf_counter()
        while self.update < self.settings.updates:
            loss = self.learn(parts)
            if on(*ROLLED):
                self.guard(loss)  # at: rolled_back_by_own_loss
            if self.rank == 0:
                self.first_rank()  # at: frechet_each_update snapshots_of_every_update
            if self.update % self.settings.tell_every == 0:
                self.tell(loss)
            if self.update % self.settings.judge_every == 0:
                self.judge_and_save()
        if self.returns:
            print(f"rank {self.rank} went back {self.returns} times", flush=True)
        if self.rank == 0:
            took = (time.perf_counter() - begun) * 1000 / self.update
            print(f"{len(self.copies)} copies, {took:.1f} ms an update", flush=True)
            cost.print(self.update)


def fall(rank):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(RANKS))
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{os.environ['RENDEZVOUS']}", rank=rank, world_size=RANKS
    )
    cloud = Cloud(rank, Settings(), FOLDER)
    cloud.run()
    return cloud


if __name__ == "__main__":
    FOLDER = Path(tempfile.mkdtemp(prefix="snowflakes"))
    code = run_ranks(RANKS, fall)
    shutil.rmtree(FOLDER, ignore_errors=True)
    sys.exit(code)
