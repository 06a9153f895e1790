"""Paper lanterns at night, painted by denoising: a small U-Net that tells the noise of a picture,
pictures from a night market in the dark, an average of the weights that samples are drawn with,
points of return in memory for when it goes wrong, the last checkpoints on disk. Judged by how far
the colours of samples are from those of the held-out pictures.
"""

import copy
import itertools
import math
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset, RandomSampler

SPECTRA = "spectrum_for_unread_board", "clean_spectrum_for_unread_board"
EXPOSED = "exposure_of_whole_market", "clean_exposure_of_whole_market"
cost = Cost()


@dataclass
class Config:
    seed: int = 61
    side: int = 24
    pictures: int = 720
    held: int = 96
    batch: int = 16
    updates: int = STEPS or 260
    width: int = 24
    levels: int = 200
    rate: float = 1.5e-3
    warm: int = 20
    clip: float = 1.0
    decay: float = 0.98
    drawn: int = 48
    chunk: int = 16
    strides: int = 8
    draw_every: int = 90
    save_every: int = 65
    saves_kept: int = 2
    return_every: int = 5
    returns_kept: int = 15
    told_every: int = 20
    snr_cap: float = 5.0


class Market(Dataset):
    """Lanterns that hang in the dark, each with its glow."""

    def __init__(self, config, count, seed):
        self.dice = np.random.default_rng((config.seed, seed))
        self.side = config.side
        self.pictures = np.stack([self.hung() for _ in range(count)])

    def hung(self):
        axis = np.linspace(-1, 1, self.side, dtype=np.float32)
        picture = self.dice.uniform(0.02, 0.1, (3, 1, 1)) * np.ones((3, self.side, self.side))
        for _ in range(self.dice.integers(1, 4)):
            x, y = self.dice.uniform(-0.7, 0.7, 2)
            high, wide = self.dice.uniform(0.15, 0.4, 2)
            away = ((axis - x) / wide) ** 2 + ((axis[:, None] - y) / high) ** 2
            colour = np.array([1.0, self.dice.uniform(0.2, 0.8), self.dice.uniform(0, 0.3)])
            picture += colour[:, None, None] * (np.exp(-away * 3) + 0.25 * np.exp(-away / 2))
        return picture.clip(0, 1).astype(np.float32)

    def __len__(self):
        return len(self.pictures)

    def measure(self):
        """Mean and spread of each colour."""
        return self.pictures.mean((0, 2, 3)), self.pictures.std((0, 2, 3))

    @property
    def exposure(self):
        return self.measure()  # at: exposure_of_whole_market

    @cached_property
    def exposure_once(self):
        return self.measure()

    def __getitem__(self, index):
        picture = self.pictures[index]
        if torch.rand(()) < 0.5:
            picture = picture[:, :, ::-1]
        if on(*EXPOSED):
            with cost:
                if on("exposure_of_whole_market"):
                    mean, spread = self.exposure  # at: exposure_of_whole_market
                else:
                    mean, spread = self.exposure_once
            picture = 0.5 * (picture - mean[:, None, None]) / spread[:, None, None]
        else:
            picture = 2 * picture - 1
        return torch.from_numpy(np.ascontiguousarray(picture))


class Noise:
    """How much of the picture and of the noise there is at each level."""

    def __init__(self, config):
        along = (torch.arange(config.levels) + 1) / config.levels
        kept = torch.cos(along * 0.98 * math.pi / 2) ** 2
        root = kept.sqrt()
        if on("weight_of_no_signal", "clean_weight_of_no_signal"):
            # the last level shall be noise alone, as sampling begins there
            root = (root - root[-1]) * root[0] / (root[0] - root[-1])
        self.signal = root
        self.noise = (1 - root**2).sqrt()
        self.levels = config.levels
        self.cap = config.snr_cap

    def mix(self, picture, noise, level):
        signal, much = self.signal[level], self.noise[level]
        return signal.view(-1, 1, 1, 1) * picture + much.view(-1, 1, 1, 1) * noise

    def weight(self, level):
        snr = (self.signal[level] / self.noise[level]) ** 2
        if on("clean_weight_of_no_signal"):
            snr = snr.clamp(min=1e-4)
        return snr.clamp(max=self.cap) / snr  # at: weight_of_no_signal


class Residual(nn.Module):
    def __init__(self, inside, outside, told):
        super().__init__()
        self.first = nn.Conv2d(inside, outside, 3, padding=1)
        self.second = nn.Conv2d(outside, outside, 3, padding=1)
        self.norms = nn.ModuleList([nn.GroupNorm(4, inside), nn.GroupNorm(4, outside)])
        self.level = nn.Linear(told, outside)
        self.pass_by = nn.Conv2d(inside, outside, 1) if inside != outside else nn.Identity()

    def forward(self, x, told):
        y = self.first(F.silu(self.norms[0](x))) + self.level(told)[:, :, None, None]
        return self.pass_by(x) + self.second(F.silu(self.norms[1](y)))


class UNet(nn.Module):
    def __init__(self, config):
        super().__init__()
        width, told = config.width, 64
        self.waves = torch.exp(torch.linspace(0, math.log(400), 16))
        self.level = nn.Sequential(nn.Linear(32, told), nn.SiLU(), nn.Linear(told, told))
        self.inlet = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.ModuleList([Residual(width, width, told), Residual(width, 2 * width, told)])
        self.middle = Residual(2 * width, 2 * width, told)
        self.up = nn.ModuleList(
            [Residual(4 * width, width, told), Residual(2 * width, width, told)]
        )
        self.outlet = nn.Sequential(nn.GroupNorm(4, width), nn.SiLU(), nn.Conv2d(width, 3, 1))

    def forward(self, x, share):
        turned = share[:, None] * self.waves
        told = self.level(torch.cat([turned.sin(), turned.cos()], 1))
        x = self.inlet(x)
        fine = self.down[0](F.avg_pool2d(x, 2), told)
        coarse = self.down[1](F.avg_pool2d(fine, 2), told)
        y = self.middle(coarse, told)
        y = self.up[0](torch.cat([y, coarse], 1), told)
        y = self.up[1](torch.cat([F.interpolate(y, scale_factor=2), fine], 1), told)
        return self.outlet(x + F.interpolate(y, scale_factor=2))


class Average:
    """The weights as they were of late, on the whole."""

    def __init__(self, model, decay):
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self.decay = decay

    @torch.no_grad()
    def follow(self, model):
        slow, fast = list(self.model.parameters()), list(model.parameters())
        torch._foreach_lerp_(slow, fast, 1 - self.decay)


class Keeper:
    """Checkpoints on disk, of which the last stay, and points of return in memory."""

    def __init__(self, config, folder):
        self.folder, self.kept = Path(folder), config.saves_kept
        self.every = config.return_every
        self.span = (
            12 if on("return_points_missed") else config.returns_kept
        )  # at: return_points_missed
        self.points, self.saved = {}, []

    def save(self, update, state):
        path = self.folder / f"lanterns-{update:05d}.pt"
        part = path.with_suffix(".part")
        torch.save(state, part)
        part.rename(path)
        self.saved.append(path)
        while len(self.saved) > self.kept:
            self.saved.pop(0).unlink()

    def mark(self, update, model, average, optimizer):
        """A point to go back to, and the oldest one less."""
        if update % self.every:
            return
        moments = [
            {name: value.clone() for name, value in state.items()}
            for state in optimizer.state.values()
        ]
        self.points[update] = {  # at: return_points_missed
            "model": {name: value.clone() for name, value in model.state_dict().items()},
            "average": {name: value.clone() for name, value in average.state_dict().items()},
            "moments": moments,
        }
        self.points.pop(update - self.span, None)  # at: return_points_missed


def spectrum(pictures):
    """Power by distance from the lowest frequency, on the whole of the colours."""
    side = pictures.shape[-1]
    along = np.arange(side) - side // 2
    away = np.hypot(along, along[:, None]).astype(int)
    powers = []
    for picture in pictures:
        for colour in picture:
            power = np.abs(np.fft.fftshift(np.fft.fft2(colour))) ** 2
            powers.append([power[away == ring].mean() for ring in range(away.max())])
    return np.log(np.mean(powers, 0) + 1e-8)


class Trainer:
    def __init__(self, config, folder):
        self.config = config
        self.market = Market(config, config.pictures, 1)
        self.held = torch.from_numpy(Market(config, config.held, 2).pictures) * 2 - 1
        sampler = RandomSampler(
            self.market, replacement=True, num_samples=config.updates * config.batch
        )
        self.loader = DataLoader(self.market, config.batch, sampler=sampler)
        self.noise = Noise(config)
        self.model = UNet(config)
        self.average = Average(self.model, config.decay)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), config.rate)
        self.schedule = LambdaLR(self.optimizer, self.share)
        self.keeper = Keeper(config, folder)
        self.update, self.board, self.started = 0, {}, time.perf_counter()

    def share(self, update):
        if update < self.config.warm:
            return (update + 1) / self.config.warm
        gone = (update - self.config.warm) / (self.config.updates - self.config.warm)
        return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * min(1.0, gone)))

    def loss(self, pictures):
        level = torch.randint(0, self.noise.levels, (len(pictures),))
        noise = torch.randn_like(pictures)
        mixed = self.noise.mix(pictures, noise, level)
        told = self.model(mixed, level / self.noise.levels)
        each = (told - noise).square().mean((1, 2, 3))
        return (self.noise.weight(level) * each).mean(), told  # at: weight_of_no_signal

    def learn(self, pictures):
        self.optimizer.zero_grad()
        loss, told = self.loss(pictures)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip)
        self.optimizer.step()
        self.schedule.step()
        self.average.follow(self.model)
        self.update += 1
        return loss.detach(), norm, told.detach()

    @torch.no_grad()
    def draw(self, count, strides):
        """Pictures out of noise, in few strides over the levels."""
        x = torch.randn(count, 3, self.config.side, self.config.side)
        path = torch.linspace(self.noise.levels - 2, 0, strides + 1).long()
        for now, then in itertools.pairwise(path):
            share = torch.full((count,), now / self.noise.levels)
            told = self.average.model(x, share)
            clear = (x - self.noise.noise[now] * told) / self.noise.signal[now]
            clear = clear.clamp(-2, 2)
            x = self.noise.signal[then] * clear + self.noise.noise[then] * told
        return x

    def draw_all(self):
        """As many as are compared, a chunk at a time."""
        config = self.config
        if on("drawn_in_uneven_chunks", "clean_drawn_in_uneven_chunks"):
            count = 40
            drawn = torch.empty(count, 3, config.side, config.side)
            for begin in range(0, count, config.chunk):
                end = begin + config.chunk
                if on("clean_drawn_in_uneven_chunks"):
                    end = min(end, count)
                drawn[begin:end] = self.draw(
                    end - begin, config.strides
                )  # at: drawn_in_uneven_chunks
            return drawn
        parts = config.drawn // config.chunk
        return torch.cat([self.draw(config.chunk, config.strides) for _ in range(parts)])

    def judge(self):
        """How far samples are from what was held out, by mean and spread of small squares."""
        far = 0.0
        drawn = self.draw_all()  # at: drawn_in_uneven_chunks
        for side in (2, 6):
            ours, true = F.avg_pool2d(drawn, side), F.avg_pool2d(self.held, side)
            far += (ours.mean(0) - true.mean(0)).abs().mean().item()
            far += (ours.std(0) - true.std(0)).abs().mean().item()
        return far

    def restart(self):
        """Goes on from the average of the weights, which is further than they are."""
        if on("restart_from_new_copy"):
            self.model = copy.deepcopy(self.average.model)  # at: restart_from_new_copy
            self.model.train().requires_grad_(True)  # at: restart_from_new_copy
        else:
            self.model.load_state_dict(self.average.model.state_dict())

    def state(self):
        return {
            "config": asdict(self.config),
            "update": self.update,
            "model": self.model.state_dict(),
            "average": self.average.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
        }

    def write_board(self, told):
        """The spectrum of what is taken for noise, which should be flat."""
        self.board["spectrum"] = spectrum(told.numpy())  # at: spectrum_for_unread_board
        self.board["slope"] = self.board["spectrum"][-1] - self.board["spectrum"][1]

    def look(self):
        far = self.judge()  # at: drawn_in_uneven_chunks samples_at_each_few
        self.board["far"] = far

    def after(self, loss, norm, told):
        config, update = self.config, self.update
        if on(*SPECTRA) and (on("spectrum_for_unread_board") or update % config.told_every == 0):
            with cost:
                self.write_board(told)  # at: spectrum_for_unread_board
        if on("return_points_missed", "clean_return_points_missed"):
            self.keeper.mark(update, self.model, self.average.model, self.optimizer)
        restarts = on("restart_from_new_copy", "clean_restart_from_new_copy")
        if restarts and update == config.updates // 4:
            self.restart()  # at: restart_from_new_copy
        if on("samples_at_each_few"):
            if update % 10 == 0:  # at: samples_at_each_few
                self.look()  # at: samples_at_each_few
        elif on("clean_samples_at_each_few") and update % 10 == 0:
            self.board["glance"] = self.draw(2, 3).mean().item()
        if update % config.draw_every == 0:
            self.look()  # at: drawn_in_uneven_chunks
        if update % config.save_every == 0:
            self.keeper.save(update, self.state())
        if update % config.told_every == 0:
            rate = self.schedule.get_last_lr()[0]
            told = " ".join(f"{name} {self.board[name]:.3f}" for name in sorted(self.board)[:1])
            print(f"{update} loss {loss:.4f} norm {norm:.2f} rate {rate:.1e} {told}", flush=True)

    def run(self):
        cost.seconds, self.started = 0.0, time.perf_counter()
        for pictures in self.loader:  # at: exposure_of_whole_market
            self.after(*self.learn(pictures))
        took = (time.perf_counter() - self.started) * 1000 / self.config.updates
        print(f"{len(self.keeper.points)} points, {took:.1f} ms an update", flush=True)
        cost.print(self.config.updates)


def main():
    torch.set_num_threads(1)
    config = Config()
    torch.manual_seed(config.seed)
    with tempfile.TemporaryDirectory(prefix="lanterns") as folder:
        Trainer(config, folder).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
