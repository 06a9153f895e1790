"""Bakeries: what is sold of each kind in each hour of tomorrow, as quantiles, and how much of it in
all, from a week before and a calendar, under Lightning: holidays sought hour by hour, attention
kept for a plot, errors scaled by an unsold week, milestones of epochs, a calendar that is built at
the start, a figure for each kind, a model without its settings.
"""

import math
import tempfile
import warnings
from pathlib import Path

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import CSVLogger
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

DAY, WEEK, YEAR = 24, 168, 24 * 365
SHOPS, KINDS, PATCH, BATCH = 6, 24, 4, 48
QUANTILES = (0.1, 0.3, 0.5, 0.7, 0.9)
KNOWN = 6
DRAWN, HELD = 20 * BATCH, 3 * BATCH
POWER = 1.5
cost = Cost()


class Ledger:
    """A year of sales, (series, hours); days when a shop was shut are zeros."""

    def __init__(self, seed):
        dice = np.random.default_rng(seed)
        hours = np.arange(YEAR)
        self.holidays = np.sort(dice.choice(365, 26, replace=False)) * DAY + 12
        series = SHOPS * KINDS
        peak = dice.uniform(7, 17, (series, 1))
        daily = np.exp(-(((hours % DAY) - peak) ** 2) / dice.uniform(4, 30, (series, 1)))
        weekly = 1 + 0.4 * np.sin(2 * np.pi * (hours / WEEK + dice.random((series, 1))))
        size = np.exp(dice.normal(1.5, 0.8, (series, 1)))
        near = np.exp(-np.abs(hours[:, None] - self.holidays).min(1) / 20)
        sold = dice.poisson(size * daily * weekly * (1 + near))
        shut = dice.random((series, 365)) < 0.05
        sold[np.repeat(shut, DAY, axis=1)] = 0
        for one in dice.choice(series, 12, replace=False):  # not baked for three weeks
            begin = dice.integers(YEAR - 3 * WEEK)
            sold[one, begin : begin + 3 * WEEK] = 0
        self.sold = sold.astype(np.float32)
        self.scale = self.sold.mean(1) + 0.1
        self.until = np.abs(hours[:, None] - self.holidays).min(1)


class Windows(Dataset):
    def __init__(self, ledger, count, first, last, seed):
        dice = np.random.default_rng(seed)
        self.ledger = ledger
        self.which = dice.integers(SHOPS * KINDS, size=count)
        self.start = dice.integers(first, last - WEEK - DAY, size=count)

    def __len__(self):
        return len(self.which)

    def until_holiday(self, hours):
        """Hours to the nearest holiday, before or after."""
        holidays = self.ledger.holidays
        if on("holidays_sought_by_hour"):
            return np.array(
                [min(abs(hour - day) for day in holidays.tolist()) for hour in hours.tolist()]
            )  # at: holidays_sought_by_hour
        if on("clean_holidays_sought_by_hour"):
            after = np.searchsorted(holidays, hours)
            later = holidays[np.minimum(after, len(holidays) - 1)]
            return np.minimum(np.abs(later - hours), np.abs(holidays[after - 1] - hours))
        return self.ledger.until[hours]

    def calendar(self, start):
        hours = np.arange(start, start + WEEK + DAY)
        with cost:
            until = self.until_holiday(hours)  # at: holidays_sought_by_hour
        day, week = 2 * np.pi * hours / DAY, 2 * np.pi * hours / WEEK
        known = (np.sin(day), np.cos(day), np.sin(week), np.cos(week), until / 100, until < DAY)
        return np.stack(known, 1).astype(np.float32)

    def __getitem__(self, index):
        which, start = self.which[index], self.start[index]
        told = self.ledger.sold[which, start : start + WEEK + DAY] / self.ledger.scale[which]
        calendar = self.calendar(start)  # at: holidays_sought_by_hour
        return {
            "kind": which % KINDS,
            "calendar": calendar,
            "past": told[:WEEK],
            "next": told[WEEK:],
        }


class Sales(L.LightningDataModule):
    def setup(self, stage=None):
        ledger = Ledger(31)
        self.learnt = Windows(ledger, DRAWN, 0, YEAR * 4 // 5, 1)
        self.tried = Windows(ledger, HELD, YEAR * 4 // 5, YEAR, 2)

    def train_dataloader(self):
        return DataLoader(
            self.learnt, BATCH, shuffle=True, drop_last=True
        )  # at: holidays_sought_by_hour

    def val_dataloader(self):
        return DataLoader(self.tried, BATCH)


class Coverage:
    """How often what was sold lies between the outer quantiles, over what was seen."""

    def __init__(self):
        self.reset()

    def reset(self):
        self.inside, self.seen = torch.zeros(()), 0

    def update(self, bands, sold):
        self.inside += ((sold >= bands[..., 0]) & (sold <= bands[..., -1])).sum()
        self.seen += sold.numel()

    def compute(self):
        return self.inside / max(1, self.seen)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide = nn.Sequential(
            nn.Linear(width, 3 * width), nn.GELU(), nn.Linear(3 * width, width)
        )

    def forward(self, x):
        rows, places, width = x.shape
        mixed = self.mix(self.before(x)).view(rows, places, 3, self.heads, -1)
        query, key, value = mixed.permute(2, 0, 3, 1, 4)
        shares = (query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])).softmax(-1)
        x = x + self.out((shares @ value).transpose(1, 2).reshape(rows, places, width))
        return x + self.wide(self.between(x)), shares


def calendar_layers(width):
    return nn.Sequential(
        nn.Linear(KNOWN * PATCH, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
    )


class Forecaster(L.LightningModule):
    def __init__(self, steps, width, heads=4, blocks=2, rate=2e-3):
        super().__init__()
        if not on("rebuilt_without_settings", "clean_rebuilt_without_settings"):
            self.save_hyperparameters()
        self.steps, self.width, self.rate = steps, width, rate
        self.patch = nn.Linear(PATCH, width)
        self.calendar = None
        if not on("calendar_built_at_start", "clean_calendar_built_at_start"):
            self.calendar = calendar_layers(width)
        self.kind = nn.Embedding(KINDS, width)
        self.asked = nn.Parameter(torch.randn(DAY // PATCH, width) * 0.02)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.bands = nn.Linear(width, PATCH * len(QUANTILES))
        self.total = nn.Linear(width, 1)
        nn.init.constant_(self.total.bias, 1.0)
        self.coverage, self.shares = Coverage(), None

    def configure_model(self):
        if on("clean_calendar_built_at_start") and self.calendar is None:
            self.calendar = calendar_layers(self.width)

    def on_train_start(self):
        if on("calendar_built_at_start"):
            self.calendar = calendar_layers(self.width)  # at: calendar_built_at_start

    def forward(self, batch):
        past = self.patch(batch["past"].unflatten(1, (-1, PATCH)))
        x = torch.cat([past, self.asked.expand(len(past), -1, -1)], 1)
        x = x + self.calendar(batch["calendar"].reshape(len(past), -1, KNOWN * PATCH))
        x = x + self.kind(batch["kind"])[:, None]
        for block in self.blocks:
            x, shares = block(x)
        self.shares = shares.detach().mean(1)
        x = self.norm(x[:, -DAY // PATCH :])
        bands = self.bands(x).view(len(past), DAY, len(QUANTILES))
        return bands, self.total(x.mean(1)).squeeze(1)

    @staticmethod
    def pinball(bands, sold):
        short = sold[..., None] - bands
        wanted = torch.tensor(QUANTILES)
        return torch.maximum(wanted * short, (wanted - 1) * short)

    @staticmethod
    def scaled(errors, past):
        """Against those of one who says that tomorrow is as today."""
        naive = (past[:, DAY:] - past[:, :-DAY]).abs().mean(1)
        if on("scaled_by_unsold_week"):
            return errors / naive[:, None, None]  # at: scaled_by_unsold_week
        if on("clean_scaled_by_unsold_week"):
            sold = naive > 0
            return errors[sold] / naive[sold][:, None, None]
        return errors

    @staticmethod
    def deviance(raw, total):
        """Tweedie's, between Poisson's and gamma's, for totals some of which are nothing."""
        mean = F.softplus(raw)
        first = total * mean.pow(1 - POWER) / (1 - POWER)
        return (mean.pow(2 - POWER) / (2 - POWER) - first).mean()

    def training_step(self, batch, index):
        bands, raw = self(batch)
        errors = self.pinball(bands, batch["next"])
        scaled = self.scaled(errors, batch["past"])  # at: scaled_by_unsold_week
        loss = scaled.mean() + 0.1 * self.deviance(raw, batch["next"].mean(1))
        self.log("loss", loss)
        if on("figure_for_each_kind"):
            with cost:
                self.tell_kinds(errors.detach(), batch["kind"])  # at: figure_for_each_kind
        return loss

    def tell_kinds(self, errors, kinds):
        for kind in kinds.unique().tolist():
            own = errors[kinds == kind].mean((0, 1))
            for quantile, error in zip(QUANTILES, own, strict=True):
                self.log(f"kind{kind}/q{quantile}", error.item())  # at: figure_for_each_kind

    def on_validation_epoch_start(self):
        self.coverage.reset()

    def validation_step(self, batch, index):
        bands, _ = self(batch)
        self.coverage.update(bands, batch["next"])
        errors = self.pinball(bands, batch["next"])
        self.log("held", errors.mean(), batch_size=len(bands))
        if on("clean_figure_for_each_kind") and index == 0:
            with cost:
                self.tell_kinds(errors, batch["kind"])

    def on_validation_epoch_end(self):
        self.log("coverage", self.coverage.compute())

    def share(self, step):
        warm = max(1, self.steps // 20)
        if step < warm:
            return (step + 1) / warm
        done = min(1.0, (step - warm) / max(1, self.steps - warm))
        return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * done))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(
            self.parameters(), lr=self.rate, weight_decay=0.01
        )  # at: calendar_built_at_start
        epochs = (4, 7, 10, 12)
        if on("milestones_meant_as_epochs"):
            schedule = torch.optim.lr_scheduler.MultiStepLR(
                optimizer, epochs, gamma=0.1
            )  # at: milestones_meant_as_epochs
        elif on("clean_milestones_meant_as_epochs"):
            each = DRAWN // BATCH
            schedule = torch.optim.lr_scheduler.MultiStepLR(
                optimizer, [epoch * each for epoch in epochs], gamma=0.1
            )
        else:
            schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, self.share)
        every = {"scheduler": schedule, "interval": "step"}  # at: milestones_meant_as_epochs
        return {"optimizer": optimizer, "lr_scheduler": every}


class Gaze(Callback):
    """Where the model looks, for a plot of an epoch's batches; tells how it goes."""

    def __init__(self):
        self.seen = {}

    def on_train_batch_end(self, trainer, model, outputs, batch, index):
        if on("gaze_of_every_step"):
            self.seen[trainer.global_step] = model.shares  # at: gaze_of_every_step
        elif on("clean_gaze_of_every_step"):
            self.seen[index] = model.shares
        else:
            self.seen[0] = model.shares
        if trainer.global_step % 25 == 0:
            rate = trainer.optimizers[0].param_groups[0]["lr"]
            print(f"{trainer.global_step} loss {outputs['loss']:.4f} rate {rate:.2e}", flush=True)

    def on_validation_end(self, trainer, model):
        told = trainer.callback_metrics
        print(f"held {told['held']:.3f} coverage {told['coverage']:.3f}", flush=True)

    def on_train_end(self, trainer, model):
        looked = torch.stack(list(self.seen.values())[-20:]).mean((0, 1))
        print("looks", looked[-1].argmax().item(), "of", len(self.seen), flush=True)


def rebuilt(path, steps):
    """The model as it was saved."""
    if on("rebuilt_without_settings"):
        return Forecaster.load_from_checkpoint(path)  # at: rebuilt_without_settings
    return Forecaster.load_from_checkpoint(path, steps=steps, width=64)


def main(folder):
    steps = STEPS or 250
    sales, model = Sales(), Forecaster(steps, width=64)
    trainer = L.Trainer(
        accelerator="cpu",
        max_steps=steps,
        max_epochs=-1,
        check_val_every_n_epoch=3,
        num_sanity_val_steps=0,
        gradient_clip_val=5.0,
        logger=CSVLogger(folder),
        log_every_n_steps=50,
        callbacks=[Gaze()],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, sales)  # at: holidays_sought_by_hour
    cost.print(steps)
    path = folder / "last.ckpt"
    trainer.save_checkpoint(path)
    if on("rebuilt_without_settings", "clean_rebuilt_without_settings"):
        model = rebuilt(path, steps)  # at: rebuilt_without_settings
    trainer.validate(model, sales, verbose=False)


if __name__ == "__main__":
    warnings.filterwarnings("ignore", module="lightning")
    torch.set_num_threads(1)
    L.seed_everything(31, verbose=False)
    with tempfile.TemporaryDirectory() as place:
        main(Path(place))
