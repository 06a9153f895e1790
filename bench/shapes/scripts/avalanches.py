"""Danger of avalanches for eight aspects of a mountain, and how far one would run, from three days
of hourly weather and a snow profile, under Lightning: a data module, two encoders, one cycle of the
rate, callbacks that verify and that look which hours matter: profiles laid on their grid at each
access, a table counted aspect by aspect, gradients of all hours kept, a root under a mask, an
encoder in no group, gradients clipped once they are used, a measure with five values.
"""

import math
import tempfile
import warnings
from pathlib import Path

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

cost = Cost()
DAYS, HELD, ROWS = 1600, 96, 32
HOURS, GAUGES, CELLS, TRAITS = 72, 8, 64, 5
ASPECTS, LEVELS, WIDTH = 8, 5, 64
RATE, DECAY, CLIP = 3e-3, 1e-2, 1.0
TOLD_EVERY, TRIED_EVERY, SAVED_EVERY, RECENT = 50, 60, 120, 20


def weather(numbers, days):
    """Temperature, wind, snowfall and their like, as walks that swing with the day."""
    hours = np.arange(HOURS) / 24 * 2 * np.pi
    swing = np.sin(hours[:, None] + numbers.uniform(0, 2 * np.pi, (days, 1, GAUGES)))
    walk = np.cumsum(numbers.normal(0, 0.2, (days, HOURS, GAUGES)), axis=1)
    level = numbers.normal(0, 1, (days, 1, GAUGES))
    return (level + 0.5 * swing + walk).astype(np.float32)


def dug(numbers):
    """Layers of one profile from the ground up: where each ends, and its traits."""
    count = numbers.integers(6, 15)
    ends = np.cumsum(numbers.dirichlet(np.ones(count)))
    return ends, numbers.normal(0, 1, (count, TRAITS)).astype(np.float32)


def laid(ends, traits):
    """A profile on an even grid: a cell has of each layer as much as lies in it."""
    grid = np.zeros((TRAITS, CELLS), np.float32)
    for cell in range(CELLS):
        low, high = cell / CELLS, (cell + 1) / CELLS
        below = 0.0
        for end, layer in zip(ends, traits, strict=True):
            share = min(high, end) - max(low, below)  # at: profiles_laid_at_access
            if share > 0:
                grid[:, cell] += layer * (share * CELLS)  # at: profiles_laid_at_access
            below = end
    return grid


class Winters(Dataset):
    """Days with their weather, their profile and what was seen on the slopes."""

    def __init__(self, days, seed, at_access):
        numbers = np.random.default_rng(seed)
        self.weather = torch.from_numpy(weather(numbers, days))
        self.profiles = [dug(numbers) for _ in range(days)]
        self.grids = np.stack([laid(*profile) for profile in self.profiles])
        told = self.weather[:, -24:, :3].mean(1) @ torch.tensor([0.8, 0.5, -0.4])
        told = told + torch.from_numpy(self.grids[:, 0, 40:].mean(1)) * 2
        aspects = torch.linspace(-0.8, 0.8, ASPECTS)
        noise = torch.from_numpy(numbers.normal(0, 0.3, (days, ASPECTS)))
        score = told[:, None] + aspects * self.weather[:, -1, 3:4] + noise
        self.levels = torch.bucketize(score.float(), torch.tensor([-1.5, -0.5, 0.5, 1.5]))
        self.released = told > 0
        self.runout = told.clamp(min=0).float()
        if at_access:
            self.grids = None

    def __len__(self):
        return len(self.levels)

    def profile(self, index):
        if self.grids is not None:
            return torch.from_numpy(self.grids[index])
        with cost:
            return torch.from_numpy(laid(*self.profiles[index]))  # at: profiles_laid_at_access

    def __getitem__(self, index):
        profile = self.profile(index)  # at: profiles_laid_at_access
        return {
            "weather": self.weather[index],
            "profile": profile,
            "levels": self.levels[index],
            "released": self.released[index],
            "runout": self.runout[index],
        }


class Slopes(L.LightningDataModule):
    def setup(self, stage):
        self.train = Winters(DAYS, 1, on("profiles_laid_at_access"))
        self.held = Winters(HELD, 2, on("clean_profiles_laid_at_access"))

    def train_dataloader(self):
        return DataLoader(
            self.train, ROWS, shuffle=True, drop_last=True
        )  # at: profiles_laid_at_access

    def val_dataloader(self):
        return DataLoader(self.held, 64)


class WeatherEncoder(nn.Module):
    """Hours side by side, then one after the other."""

    def __init__(self):
        super().__init__()
        self.near = nn.Conv1d(GAUGES, WIDTH, 5, padding=2)
        self.hours = nn.GRU(WIDTH, WIDTH, batch_first=True)

    def forward(self, x):
        near = F.gelu(self.near(x.transpose(1, 2))).transpose(1, 2)
        return self.hours(near)[0]


class ProfileEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(TRAITS, WIDTH, 5, padding=2),
            nn.GELU(),
            nn.Conv1d(WIDTH, WIDTH, 5, stride=2, padding=2),
            nn.GELU(),
        )

    def forward(self, grid):
        features = self.layers(grid)
        return torch.cat([features.mean(2), features.amax(2)], 1)


class Forecaster(L.LightningModule):
    def __init__(self, steps):
        super().__init__()
        self.steps = steps
        self.weather, self.profile = WeatherEncoder(), ProfileEncoder()
        self.attention = nn.Linear(WIDTH, 1)
        self.joined = nn.Sequential(nn.Linear(3 * WIDTH, 128), nn.GELU(), nn.Dropout(0.1))
        self.level = nn.Linear(128, ASPECTS * LEVELS)
        self.distance = nn.Linear(128, 1)
        nn.init.constant_(self.distance.bias, 1.0)
        self.tables = torch.zeros(LEVELS, LEVELS)
        self.on_hours = None
        if on("clean_encoder_in_no_group"):  # as it came from the survey of last winter
            self.profile.requires_grad_(False)

    def forward(self, batch):
        hours = self.weather(batch["weather"])
        if self.on_hours is not None and hours.requires_grad:
            hours.register_hook(self.on_hours)  # at: gradients_of_hours_kept
        weights = self.attention(hours).softmax(1)
        x = torch.cat([(hours * weights).sum(1), self.profile(batch["profile"])], 1)
        x = self.joined(x)
        levels = self.level(x).view(-1, ASPECTS, LEVELS)
        return levels, self.ran(self.distance(x)[:, 0], batch["released"])

    @staticmethod
    def ran(raw, released):
        """The root of how far it runs, where anything ran at all."""
        there = released & (raw > 0)
        if on("root_under_where"):
            return torch.where(there, raw.sqrt(), 0.0)  # at: root_under_where
        if on("clean_root_under_where"):
            return torch.where(there, torch.where(there, raw, 1.0).sqrt(), 0.0)
        return F.softplus(raw) * released

    def losses(self, batch):
        levels, ran = self(batch)
        graded = F.cross_entropy(levels.flatten(0, 1), batch["levels"].flatten())
        far = F.smooth_l1_loss(ran, batch["runout"].sqrt())
        return graded + 0.5 * far, levels

    def training_step(self, batch, _):
        loss, levels = self.losses(batch)
        return {"loss": loss, "said": levels.detach().argmax(-1)}

    def on_before_optimizer_step(self, optimizer):
        if on("clean_clipped_once_used"):
            self.clip_gradients(optimizer, CLIP, "norm")

    def on_before_zero_grad(self, optimizer):
        if on("clipped_once_used"):
            nn.utils.clip_grad_norm_(self.parameters(), CLIP)  # at: clipped_once_used

    def on_validation_epoch_start(self):
        self.tables = torch.zeros(LEVELS, LEVELS)

    def validation_step(self, batch, _):
        loss, levels = self.losses(batch)
        both = batch["levels"].flatten() * LEVELS + levels.argmax(-1).flatten()
        self.tables += torch.bincount(both, minlength=LEVELS**2).view(LEVELS, LEVELS)
        self.log("held_loss", loss, batch_size=len(levels))

    def on_validation_epoch_end(self):
        recall = self.tables.diagonal() / self.tables.sum(1).clamp(min=1)
        if on("recall_of_five_logged"):
            self.log("recall", recall)  # at: recall_of_five_logged
        elif on("clean_recall_of_five_logged"):
            self.log_dict({f"recall_{level}": one for level, one in enumerate(recall)})
        else:
            self.log("recall", recall.mean())

    def configure_optimizers(self):
        new = [self.attention, self.joined, self.level, self.distance]
        groups = [
            {"params": self.weather.parameters(), "weight_decay": 0.0},
            {"params": [value for part in new for value in part.parameters()]},
        ]  # at: encoder_in_no_group
        if not on("encoder_in_no_group", "clean_encoder_in_no_group"):
            groups.append({"params": self.profile.parameters()})
        optimizer = torch.optim.AdamW(
            groups, lr=RATE, weight_decay=DECAY
        )  # at: encoder_in_no_group
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=self.steps + 1)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }


class Verification(Callback):
    """How often each level of danger or more was said, and how often it was there."""

    def __init__(self):
        self.table = torch.zeros(LEVELS - 1, 2, 2, dtype=torch.long)

    def one_by_one(self, said, seen):
        for one, other in zip(said, seen, strict=True):
            for aspect in range(ASPECTS):
                for level in range(1, LEVELS):
                    place = (
                        int(one[aspect] >= level),
                        int(other[aspect] >= level),
                    )  # at: counted_aspect_by_aspect
                    self.table[level - 1][place] += 1  # at: counted_aspect_by_aspect

    def at_once(self, said, seen):
        for level in range(1, LEVELS):
            both = 2 * (said >= level).long() + (seen >= level).long()
            self.table[level - 1] += torch.bincount(both.flatten(), minlength=4).view(2, 2)

    def on_train_batch_end(self, trainer, module, outputs, batch, number):
        if on("counted_aspect_by_aspect"):
            with cost:
                self.one_by_one(outputs["said"], batch["levels"])  # at: counted_aspect_by_aspect
        elif on("clean_counted_aspect_by_aspect") or trainer.global_step % TOLD_EVERY == 0:
            self.at_once(outputs["said"], batch["levels"])

    def skill(self):
        """Of each level: threat scores, hits among all that was said or seen."""
        hits, all_of = self.table[:, 1, 1], self.table.sum((1, 2)) - self.table[:, 0, 0]
        return [round(value, 2) for value in (hits / all_of.clamp(min=1)).tolist()]


class Hours(Callback):
    """Which hours the forecast hangs on, by the gradient of what is known of each."""

    def __init__(self):
        self.kept, self.mean = [], torch.zeros(HOURS)

    def note(self, gradient):
        if on("gradients_of_hours_kept"):
            self.kept.append(gradient.abs())  # at: gradients_of_hours_kept
        else:
            self.mean.lerp_(gradient.abs().mean((0, 2)), 1 / RECENT)

    def on_train_start(self, trainer, module):
        if on("gradients_of_hours_kept", "clean_gradients_of_hours_kept"):
            module.on_hours = self.note  # at: gradients_of_hours_kept

    def largest(self):
        if self.kept:
            self.mean = torch.stack(self.kept[-RECENT:]).mean((0, 1, 3))
        return f"{self.mean.argmax().item()} of {self.mean.max().item():.1e}"


class Told(Callback):
    def __init__(self, verification, hours):
        self.verification, self.hours = verification, hours

    def on_train_batch_end(self, trainer, module, outputs, batch, number):
        step = trainer.global_step
        if step % TOLD_EVERY == 0:
            loss, skill = outputs["loss"].item(), self.verification.skill()
            print(step, f"{loss:.4f}", "skill", skill, "hour", self.hours.largest(), flush=True)

    def on_validation_end(self, trainer, module):
        measures = {name: value.item() for name, value in trainer.callback_metrics.items()}
        told = {name: round(value, 3) for name, value in measures.items() if math.isfinite(value)}
        print(trainer.global_step, "held", told, flush=True)


def main(folder, steps):
    L.seed_everything(29, verbose=False)
    verification, hours = Verification(), Hours()
    saved = ModelCheckpoint(folder, filename="{step}", every_n_train_steps=SAVED_EVERY)
    by_hand = on("clipped_once_used", "clean_clipped_once_used")
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=steps,
        max_epochs=-1,
        val_check_interval=TRIED_EVERY,
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        gradient_clip_val=None if by_hand else CLIP,
        callbacks=[verification, hours, Told(verification, hours), saved],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    trainer.fit(Forecaster(steps), datamodule=Slopes())
    cost.print(steps)


if __name__ == "__main__":
    warnings.filterwarnings("ignore", module="lightning")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder), STEPS or 250)
