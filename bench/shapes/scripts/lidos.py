"""Bathers of open-air pools, hour by hour: a network that reads days of visits and weather and
tells three quantiles of the next day, as a LightningModule with its DataModule and two callbacks;
records with gaps, so that visits of the day and the week before are found by their time.
"""

import logging
import shutil
import sys
import tempfile
import time
import warnings
from collections import deque
from contextlib import nullcontext

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback, LearningRateMonitor
from lightning.pytorch.loggers import CSVLogger
from shape import STEPS, Cost, on
from torch import nn
from torch.utils.data import DataLoader, Dataset

BATCHES = STEPS or 260
LIDOS, DAYS, HELD_DAYS = 24, 730, 56
PAST, AHEAD, STRIDE, ROWS = 96, 24, 5, 32
LAGS = (24, 168)
QUANTILES = (0.1, 0.5, 0.9)
RATE, DECAY, WIDTH = 3e-3, 1e-2, 80
TOLD_EVERY, HELD_EVERY, SHRINK = 25, 80, 0.9
LAGGED = "lags_sought_by_stamp", "clean_lags_sought_by_stamp"
WALKED = "backtest_each_few_batches", "clean_backtest_each_few_batches"
cost = Cost()


class Record:
    """What one lido wrote down: the hours it has, visits and weather."""

    def __init__(self, dice, closed=None):
        hours = np.arange(24 * DAYS)
        day, hour = hours // 24, hours % 24
        season = 0.7 - 0.35 * np.cos(2 * np.pi * day / 365)
        warm = 8 + 16 * season + 4 * np.sin(2 * np.pi * (hour - 9) / 24)
        warm += np.repeat(dice.normal(0, 3, DAYS), 24)
        rain = np.repeat(dice.random(DAYS) < 0.3, 24) * dice.gamma(1.0, 1.0, len(hours))
        weekend = (day % 7 >= 5).astype(float)
        curve = np.exp(-(((hour - 15) / 4.0) ** 2))
        size = dice.uniform(20, 90)
        mean = size * curve * season * (1 + 0.6 * weekend) * np.exp(-0.4 * rain)
        visits = dice.poisson(mean * np.exp(0.04 * (warm - 18))).astype(float)
        if closed is not None:
            visits[24 * closed : 24 * closed + 264] = 0
        kept = dice.random(len(hours)) > 0.01
        self.stamps = hours[kept]
        self.visits = np.log1p(visits[kept]).astype(np.float32)
        around = 2 * np.pi * hour / 24
        known = np.stack([(warm - 15) / 8, rain, weekend, np.sin(around), np.cos(around)], 1)
        self.known = known[kept].astype(np.float32)


class Windows(Dataset):
    def __init__(self, records, held):
        self.records, self.held = records, held
        border = 24 * (DAYS - HELD_DAYS)
        self.places = []
        for lido, record in enumerate(records):
            first, last = max(LAGS), len(record.stamps) - PAST - AHEAD
            edge = int(np.searchsorted(record.stamps, border))
            if held:
                self.places += [(lido, begin) for begin in range(edge, last, 240)]
            else:
                self.places += [
                    (lido, begin) for begin in range(first, edge - PAST - AHEAD, STRIDE)
                ]

    def __len__(self):
        return len(self.places)

    def before(self, record, stamps):
        """Visits as long ago as each lag says; 0 where that hour is missing."""
        found = np.zeros((len(stamps), len(LAGS)), np.float32)
        if on("lags_sought_by_stamp"):
            for row, stamp in enumerate(stamps):
                for column, lag in enumerate(LAGS):
                    same = np.flatnonzero(record.stamps == stamp - lag)  # at: lags_sought_by_stamp
                    if len(same):
                        found[row, column] = record.visits[same[0]]
            return found
        for column, lag in enumerate(LAGS):
            wanted = stamps - lag
            place = np.searchsorted(record.stamps, wanted)
            found[:, column] = record.visits[place] * (record.stamps[place] == wanted)
        return found

    def __getitem__(self, index):
        lido, begin = self.places[index]
        record = self.records[lido]
        past, ahead = slice(begin, begin + PAST), slice(begin + PAST, begin + PAST + AHEAD)
        with cost if on(*LAGGED) and not self.held else nullcontext():
            lagged = self.before(record, record.stamps[ahead])  # at: lags_sought_by_stamp
        seen = np.concatenate([record.visits[past, None], record.known[past]], 1)
        known = np.concatenate([record.known[ahead], lagged], 1)
        return lido, seen, known, record.visits[ahead]


class Baths(L.LightningDataModule):
    def __init__(self, seed=35):
        super().__init__()
        self.seed = seed

    def setup(self, stage):
        dice = np.random.default_rng(self.seed)
        self.records = [Record(dice, closed=395 if lido == 7 else None) for lido in range(LIDOS)]
        self.learned = Windows(self.records, held=False)
        self.held = Windows(self.records, held=True)

    def train_dataloader(self):
        order = torch.Generator().manual_seed(self.seed)
        return DataLoader(self.learned, ROWS, shuffle=True, drop_last=True, generator=order)

    def val_dataloader(self):
        return DataLoader(self.held, ROWS)


class Forecaster(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.lidos = nn.Embedding(LIDOS, 8)
        self.past = nn.GRU(6, WIDTH, batch_first=True)
        self.known = nn.Linear(5 + len(LAGS), WIDTH)
        self.mixed = nn.Sequential(
            nn.Linear(2 * WIDTH + 8, 96),
            nn.LayerNorm(96),
            nn.GELU(),
            nn.Dropout(0.1),
            nn.Linear(96, len(QUANTILES)),
        )
        self.register_buffer("levels", torch.tensor(QUANTILES))
        few = 4 if on("clean_widths_kept_for_chart") else 20
        self.widths = deque(
            maxlen=None if on("widths_kept_for_chart") else few
        )  # at: widths_kept_for_chart

    def forward(self, lido, seen, known):
        _, state = self.past(seen)
        still = torch.cat([state[0], self.lidos(lido)], 1)
        still = still[:, None].expand(-1, known.shape[1], -1)
        return self.mixed(torch.cat([still, self.known(known).tanh()], 2))

    def pinball(self, told, true, seen):
        wrong = true[..., None] - told
        each = torch.maximum(self.levels * wrong, (self.levels - 1) * wrong).mean((1, 2))
        if on("scaled_by_closed_season", "clean_scaled_by_closed_season"):
            visits = seen[..., 0]
            naive = (visits[:, 24:] - visits[:, :-24]).abs().mean(1)
            if on("clean_scaled_by_closed_season"):
                naive = naive.clamp(min=0.05)
            return (each / naive).mean()  # at: scaled_by_closed_season
        return each.mean()

    def training_step(self, batch, number):
        lido, seen, known, true = batch
        told = self(lido, seen, known)
        loss = self.pinball(told, true, seen)  # at: scaled_by_closed_season
        self.log("loss", loss, prog_bar=True)
        rarely = on("clean_metrics_named_by_step") and number % 5 == 0
        if on("metrics_named_by_step") or rarely:
            self.log_cover(told.detach(), true)  # at: metrics_named_by_step
        self.note_width(told)  # at: widths_kept_for_chart
        return loss

    def log_cover(self, told, true):
        """How many of the true values lie below each quantile, by how far ahead they are."""
        below = (true[..., None] < told).float().mean(0)
        for part, hours in enumerate(below.split(AHEAD // 2)):
            for level, share in zip(QUANTILES, hours.mean(0), strict=True):
                if on("metrics_named_by_step"):
                    name = f"cover/{part}/{level}/{self.global_step}"  # at: metrics_named_by_step
                else:
                    name = f"cover/{part}/{level}"
                self.log(name, share)  # at: metrics_named_by_step

    def note_width(self, told):
        width = (told[..., -1] - told[..., 0]).mean(1)
        if on("widths_kept_for_chart", "clean_widths_kept_for_chart"):
            self.widths.append(width)  # at: widths_kept_for_chart
        else:
            self.widths.append(width.detach())

    def validation_step(self, batch, number):
        lido, seen, known, true = batch
        told = self(lido, seen, known)
        self.log("held", self.pinball(told, true, seen), batch_size=len(lido))

    def parameter_groups(self):
        """Matrices decay; biases and norms do not."""
        named = list(self.named_parameters())
        if on("groups_by_name_endings"):
            matrices = [one for name, one in named if name.endswith(".weight")]
            others = [one for name, one in named if name.endswith(".bias")]
            groups = (matrices, DECAY), (others, 0.0)  # at: groups_by_name_endings
        elif on("clean_groups_by_name_endings"):
            others = [one for name, one in named if "bias" in name or ".1." in name]
            matrices = [one for name, one in named if not ("bias" in name or ".1." in name)]
            groups = (matrices, DECAY), (others, 0.0)
        else:
            matrices = [one for name, one in named if one.ndim > 1]
            others = [one for name, one in named if one.ndim <= 1]
            groups = (matrices, DECAY), (others, 0.0)
        return [{"params": params, "weight_decay": decay} for params, decay in groups]

    def configure_optimizers(self):
        groups = self.parameter_groups()  # at: groups_by_name_endings
        optimizer = torch.optim.AdamW(groups, RATE)  # at: groups_by_name_endings
        every = {"frequency": 1}
        if on("decay_meant_for_epochs"):
            schedule = torch.optim.lr_scheduler.ExponentialLR(
                optimizer, SHRINK
            )  # at: decay_meant_for_epochs
            every["interval"] = "step"  # at: decay_meant_for_epochs
        elif on("clean_decay_meant_for_epochs"):
            schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, SHRINK ** (10 / BATCHES))
            every["interval"] = "step"
        else:
            schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, SHRINK)
            every["interval"] = "epoch"
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, **every}}


class Backtest(Callback):
    """Walks through the last week of every lido, a day at a time, on what it told itself."""

    def __init__(self, every, days=6):
        self.every, self.days, self.error = every, days, float("nan")

    def begin(self, records):
        first = [len(record.stamps) - PAST - AHEAD * self.days for record in records]
        spans = [slice(at, at + PAST + AHEAD * self.days) for at in first]
        pairs = list(zip(records, spans, strict=True))
        self.visits = torch.from_numpy(np.stack([one.visits[span] for one, span in pairs]))
        self.known = torch.from_numpy(np.stack([one.known[span] for one, span in pairs]))

    def on_fit_start(self, trainer, module):
        self.begin(trainer.datamodule.records)

    @torch.no_grad()
    def walk(self, module):
        module.eval()
        names, visits = torch.arange(LIDOS), self.visits[:, :PAST]
        for day in range(self.days):
            end = PAST + AHEAD * day
            seen = torch.cat([visits[:, -PAST:, None], self.known[:, end - PAST : end]], 2)
            lagged = visits[:, -AHEAD:, None].expand(-1, -1, len(LAGS))
            known = torch.cat([self.known[:, end : end + AHEAD], lagged], 2)
            told = module(names, seen, known)  # at: backtest_each_few_batches
            visits = torch.cat([visits, told[..., 1]], 1)
        module.train()
        return (visits[:, PAST:] - self.visits[:, PAST:]).abs().mean().item()

    def on_train_batch_end(self, trainer, module, outputs, batch, number):
        if (number + 1) % self.every == 0:
            with cost if on(*WALKED) else nullcontext():
                self.error = self.walk(module)  # at: backtest_each_few_batches


class Teller(Callback):
    def __init__(self):
        self.begun = self.used = 0.0

    def on_train_start(self, trainer, module):
        cost.seconds, self.begun = 0.0, time.perf_counter()
        self.used = time.process_time()

    def on_train_batch_end(self, trainer, module, outputs, batch, number):
        if (number + 1) % TOLD_EVERY == 0:
            width = torch.cat(list(module.widths)[-20:]).mean().item()
            rate = trainer.optimizers[0].param_groups[0]["lr"]
            loss = outputs["loss"].item()
            print(f"{number + 1} loss {loss:.4f} width {width:.2f} rate {rate:.1e}", flush=True)

    def on_validation_end(self, trainer, module):
        held = trainer.callback_metrics.get("held")
        print(f"{trainer.global_step} held {held:.4f}", flush=True)

    def on_train_end(self, trainer, module):
        took = (time.perf_counter() - self.begun) * 1000 / BATCHES
        used = (time.process_time() - self.used) * 1000 / BATCHES
        print(f"{took:.1f} ms a batch, {used:.1f} of a processor", flush=True)
        cost.print(BATCHES)


def main():
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    L.seed_everything(35, verbose=False)
    folder = tempfile.mkdtemp(prefix="lidos")
    if on("backtest_each_few_batches"):
        backtest = Backtest(every=3)  # at: backtest_each_few_batches
    elif on("clean_backtest_each_few_batches"):
        backtest = Backtest(every=15, days=2)
    else:
        backtest = Backtest(every=120)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=BATCHES,
        val_check_interval=HELD_EVERY,
        num_sanity_val_steps=0,
        gradient_clip_val=1.0,
        log_every_n_steps=10,
        logger=CSVLogger(folder),
        callbacks=[LearningRateMonitor("step"), backtest, Teller()],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Forecaster(), datamodule=Baths())  # at: lags_sought_by_stamp
    shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
