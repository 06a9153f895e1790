"""Kilns: how hard, shrunk and glossy a load comes out, with how sure that is, from eight probes
over a firing; few bits, a warm-up and a cosine, clipped gradients, a running average of the weights
that is tried and kept: a whole archive for each row, the average tried at each step, windows kept
by where they begin, a probe that is dead, a layer in no group, clipping behind the update, an
average saved with its wrapper.
"""

import math
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Dataset

PROBES, READINGS, WINDOW, COARSE, QUALITIES = 8, 2048, 1024, 4, 3


@dataclass
class Settings:
    folder: Path
    steps: int
    firings: int = 256
    held: int = 64
    rows: int = 16
    width: int = 64
    blocks: int = 2
    heads: int = 4
    dropout: float = 0.1
    peak: float = 2e-3
    floor: float = 0.02
    warm: float = 0.1
    decay: float = 0.02
    largest_norm: float = 20.0
    keep: float = 0.98
    told_every: int = 25
    tried_every: int = 50
    clock: Cost = field(default_factory=Cost)


def fired(count, seed):
    """Curves of firings, (count, probes, readings), and what came out of the kiln."""
    dice = np.random.default_rng(seed)
    time = np.linspace(0, 1, READINGS)
    peak = dice.uniform(0.8, 1.2, (count, 1, 1))
    soak = dice.uniform(0.15, 0.4, (count, 1, 1))
    ramp = dice.uniform(0.2, 0.4, (count, 1, 1))
    lag = dice.uniform(0, 0.08, (count, PROBES, 1))
    shape = np.clip((time - lag) / ramp, 0, 1) - np.clip((time - lag - ramp - soak) / 0.35, 0, 0.9)
    gains = 1 + dice.uniform(0.05, 0.4, (count, 1, 1)) * dice.normal(0, 1, (count, PROBES, 1))
    flutter = dice.uniform(0.05, 0.4, (count, 1, 1))
    ripple = np.sin(2 * np.pi * dice.uniform(20, 60, (count, PROBES, 1)) * time)
    curves = peak * gains * shape + flutter * ripple
    curves += dice.normal(0, 0.01, curves.shape)
    qualities = np.concatenate([peak[:, 0] + soak[:, 0], 4 * flutter[:, 0], gains.std(1)], 1)
    qualities += dice.normal(0, 0.02, qualities.shape)
    for firing in range(5, count, 90):  # a wire came off for the second half, or nearly
        curves[firing, firing % PROBES, READINGS // 2 - 120 :] = 0
    return curves.astype(np.float32), qualities.astype(np.float32)


class Firings(Dataset):
    """Windows of firings; each worker keeps what it has smoothed."""

    def __init__(self, path, wander):
        self.path, self.wander, self.smoothed = path, wander, {}
        self.qualities = np.load(path.with_suffix(".qualities.npy"))
        self.qualities = (self.qualities - self.qualities.mean(0)) / self.qualities.std(0)
        self.curves = np.load(path.with_suffix(".npy"), mmap_mode="r")

    def __len__(self):
        return len(self.qualities)

    def curve(self, index):
        if on("whole_archive_each_row"):
            with np.load(self.path) as archive:
                return archive["curves"][index]  # at: whole_archive_each_row
        if on("clean_whole_archive_each_row"):
            return np.load(self.path.with_suffix(".npy"), mmap_mode="r")[index]
        return self.curves[index]

    @staticmethod
    def low_passed(curve):
        waves = np.fft.rfft(curve, axis=-1)
        waves[:, waves.shape[-1] // 3 :] = 0
        return np.fft.irfft(waves, n=curve.shape[-1], axis=-1)

    def window(self, index, start):
        if on("windows_cached_by_start"):
            key = index, start
            if key not in self.smoothed:
                cut = self.curve(index)[:, start : start + WINDOW]
                self.smoothed[key] = self.low_passed(cut)  # at: windows_cached_by_start
            return self.smoothed[key]
        if on("clean_windows_cached_by_start"):
            key = index, start
            if key not in self.smoothed:
                cut = self.curve(index)[:, start : start + WINDOW]
                self.smoothed[key] = self.low_passed(cut).astype(np.float16)
            return self.smoothed[key].astype(np.float32)
        return self.low_passed(self.curve(index)[:, start : start + WINDOW])

    def __getitem__(self, index):
        start = READINGS - WINDOW
        if self.wander:
            start = int(torch.randint(READINGS - WINDOW + 1, ()))
        if on("clean_windows_cached_by_start"):  # the first half or the second
            start = WINDOW * round(start / WINDOW)
        window = self.window(index, start)  # at: whole_archive_each_row windows_cached_by_start
        coarse = window.reshape(PROBES, -1, COARSE).mean(-1)
        return coarse.astype(np.float32), np.float32(start / READINGS), self.qualities[index]


class Block(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Dropout(dropout), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        rows, places, width = x.shape
        mixed = self.mix(self.before(x)).view(rows, places, 3, self.heads, -1)
        attended = F.scaled_dot_product_attention(
            *mixed.permute(2, 0, 3, 1, 4), dropout_p=self.dropout * self.training
        )
        x = x + self.out(attended.transpose(1, 2).reshape(rows, places, width))
        return x + self.wide(self.between(x))


class Kiln(nn.Module):
    def __init__(self, own):
        super().__init__()
        self.stem = nn.Conv1d(2 * PROBES, own.width, 9, stride=4, padding=4)
        self.debias = nn.Linear(own.width, own.width)
        self.place = nn.Parameter(torch.randn(WINDOW // COARSE // 4, own.width) * 0.02)
        self.blocks = nn.Sequential(
            *(Block(own.width, own.heads, own.dropout) for _ in range(own.blocks))
        )
        self.last = nn.LayerNorm(own.width)
        self.whole = nn.Sequential(nn.Linear(1 + 2 * PROBES, own.width), nn.GELU())
        self.told = nn.Linear(2 * own.width, 2 * QUALITIES)

    def forward(self, curves, start):
        x = torch.cat([curves, standardised(curves)], 1)
        x = F.gelu(self.stem(x)).transpose(1, 2)
        x = x - self.debias(x.mean(1, keepdim=True))
        x = self.blocks(x + self.place)
        whole = self.whole(torch.cat([start[:, None], curves.mean(-1), curves.std(-1)], 1))
        mean, log = self.told(torch.cat([self.last(x).mean(1), whole], 1)).chunk(2, -1)
        return mean.float(), log.float().clamp(-6, 4)


def standardised(curves):
    """Each probe by its own mean and deviation."""
    middle, spread = curves.mean(-1, keepdim=True), curves.std(-1, keepdim=True)
    if on("dead_probe_scaled"):
        return (curves - middle) / spread  # at: dead_probe_scaled
    if on("clean_dead_probe_scaled"):
        spread = torch.where(spread > 0, spread, 1.0)
        return (curves - middle) / spread
    return (curves - middle) / spread.clamp(min=1e-3)


def unlikelihood(mean, log, qualities):
    return 0.5 * (log + (mean - qualities).square() * torch.exp(-log)).mean()


def groups(model, decay):
    """Matrices decay; biases, norms and places do not."""
    named = dict(model.named_parameters())
    if on("debias_in_no_group"):
        shrunk = [
            own for name, own in named.items() if own.ndim > 1 and "bias" not in name
        ]  # at: debias_in_no_group
        plain = [own for own in named.values() if own.ndim < 2]  # at: debias_in_no_group
    elif on("clean_debias_in_no_group"):
        shrunk = [own for name, own in named.items() if own.ndim > 1 and "bias" not in name]
        plain = [own for name, own in named.items() if own.ndim < 2 or "bias" in name]
    else:
        shrunk = [own for own in named.values() if own.ndim > 1]
        plain = [own for own in named.values() if own.ndim < 2]
    return [{"params": shrunk, "weight_decay": decay}, {"params": plain, "weight_decay": 0.0}]


def rate(own):
    """The share of the peak at a step: up in a line, down in half a cosine."""
    warm = max(1, int(own.warm * own.steps))

    def share(step):
        if step < warm:
            return (step + 1) / warm
        done = min(1.0, (step - warm) / max(1, own.steps - warm))
        return own.floor + (1 - own.floor) * 0.5 * (1 + math.cos(math.pi * done))

    return share


@torch.no_grad()
def tried(model, loader):
    """Mean absolute errors of held firings."""
    model.eval()
    errors, count = torch.zeros(QUALITIES), 0
    for curves, start, qualities in loader:
        with torch.autocast("cpu", torch.bfloat16):
            mean, _ = model(curves, start)
        errors += (mean - qualities).abs().sum(0)
        count += len(qualities)
    return errors / count


def update(own, model, optimizer, loss):
    """Backward, clipping, the step; how long the gradient was."""
    model.zero_grad(set_to_none=True)
    loss.backward()
    if on("clipped_after_update"):
        optimizer.step()
        return nn.utils.clip_grad_norm_(
            model.parameters(), own.largest_norm
        )  # at: clipped_after_update
    norm = nn.utils.clip_grad_norm_(model.parameters(), own.largest_norm)
    optimizer.step()
    if on("clean_clipped_after_update"):  # what was used of it
        return nn.utils.clip_grad_norm_(model.parameters(), math.inf)
    return norm


def train(own, model, average, loaders):
    optimizer = torch.optim.AdamW(
        groups(model, own.decay), lr=own.peak, betas=(0.9, 0.98)
    )  # at: debias_in_no_group
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate(own))
    every = own.tried_every
    if on("average_tried_each_step"):
        every = 1  # at: average_tried_each_step
    elif on("clean_average_tried_each_step"):
        every = 25
    step, errors = 0, torch.zeros(QUALITIES)
    model.train()
    while step < own.steps:
        for curves, start, qualities in loaders["train"]:  # at: whole_archive_each_row
            with torch.autocast("cpu", torch.bfloat16):
                mean, log = model(curves, start)  # at: dead_probe_scaled
            loss = unlikelihood(mean, log, qualities)
            norm = update(own, model, optimizer, loss)  # at: clipped_after_update
            schedule.step()
            average.update_parameters(model)
            step += 1
            if step % every == 0:
                with own.clock:
                    errors = tried(average, loaders["held"])  # at: average_tried_each_step
            if step % own.told_every == 0:
                print(
                    f"{step:5d} loss {loss.item():.4f} norm {norm:.2f} "
                    f"rate {schedule.get_last_lr()[0]:.2e} off by {errors.numpy().round(3)}",
                    flush=True,
                )
            if step == own.steps:
                break


def conclude(own, average, loader):
    """The average as a file, and the file once more as a model."""
    path, fresh = own.folder / "average.pt", Kiln(own)
    wrapped = on("average_under_prefix", "clean_average_under_prefix")
    kept = average if wrapped else average.module
    torch.save(kept.state_dict(), path)  # at: average_under_prefix
    state = torch.load(path, weights_only=True)
    if on("clean_average_under_prefix"):
        del state["n_averaged"]
        state = {name.removeprefix("module."): value for name, value in state.items()}
    fresh.load_state_dict(state)  # at: average_under_prefix
    print("as saved", tried(fresh, loader).numpy().round(3), flush=True)


def stored(folder, name, count, seed):
    curves, qualities = fired(count, seed)
    path = folder / f"{name}.npz"
    np.savez(path, curves=curves)
    np.save(path.with_suffix(".npy"), curves)
    np.save(path.with_suffix(".qualities.npy"), qualities)
    return path


def main(folder):
    own = Settings(folder, STEPS or 300)
    learning = Firings(stored(folder, "learning", own.firings, 1), wander=True)
    held = Firings(stored(folder, "held", own.held, 2), wander=False)
    loaders = {
        "train": DataLoader(
            learning,
            own.rows,
            shuffle=True,
            drop_last=True,
            num_workers=2,
            persistent_workers=True,
            prefetch_factor=4,
        ),
        "held": DataLoader([held[index] for index in range(own.held)], own.rows),
    }
    model = Kiln(own)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(own.keep))
    train(own, model, average, loaders)
    own.clock.print(own.steps)
    conclude(own, average, loaders["held"])  # at: average_under_prefix


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.multiprocessing.set_sharing_strategy("file_system")
    torch.manual_seed(29)
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
