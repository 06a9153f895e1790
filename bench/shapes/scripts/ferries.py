"""Ferries that sail, sail late or stay in port, and how many vehicles they carry: the weather of
the hours before and what the timetable says go into one network of two heads, in a Lightning
module fed by a data module; stopped early, kept at its best, scored by a callback of its own.
"""

import logging
import math
import tempfile
import warnings
from pathlib import Path

import lightning
import numpy as np
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, Subset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
cost = Cost()
PORTS, YEARS, CHANNELS, WINDOW = 32, 5, 12, 48
HOURS = YEARS * 8760
WIND, WAVES, PRESSURE, FOG = range(4)
KINDS = ("sailed", "late", "stayed")
SPEEDS = 360 / np.array(
    (12.42, 12.0, 12.66, 23.93, 25.82, 11.97, 24.07, 26.87, 12.63, 12.87, 12.87, 12.91)
    + (12.22, 12.19, 11.98, 23.1, 24.83, 22.31, 327.9, 661.3)
)
"""Degrees an hour of the parts of a tide, by their periods."""


def climate(seed):
    """What was measured in each port in each hour: storms that pass, and noise of the sensors."""
    numbers = torch.Generator().manual_seed(seed)
    archive = torch.randn(PORTS, HOURS, CHANNELS, generator=numbers)
    coarse = torch.randn(PORTS, CHANNELS, HOURS // 24 + 1, generator=numbers)
    storms = F.interpolate(coarse, HOURS, mode="linear").transpose(1, 2)
    archive.mul_(0.4).add_(storms)
    archive[..., WAVES].mul_(0.5).add_(archive[..., WIND], alpha=0.8)
    return archive


def local_clock():
    """The hour that the clock of the port showed: put forward in March and back in October."""
    hours = np.arange(HOURS)
    summer = (hours % 8760 >= 2090) & (hours % 8760 < 7130)
    return (hours + summer).astype(np.float32)


def tides_of(amplitudes, phases, hours):
    """How high the water stands in a port, of the parts of its tide."""
    angles = np.deg2rad(SPEEDS[:, None] * hours + phases[:, None])
    return (amplitudes @ np.cos(angles)).astype(np.float32)


class Sailings(Dataset):
    """Each a port, an hour and a ship; with what became of it."""

    def __init__(self, archive, count, seed):
        numbers = np.random.default_rng(seed)
        self.archive, self.clock = archive, local_clock()
        self.ports = numbers.integers(0, PORTS, count)
        days, hours = numbers.integers(2, YEARS * 365, count), numbers.integers(4, 23, count)
        self.starts = 24 * days + hours - WINDOW + 1
        self.booked = numbers.beta(2, 2, count).astype(np.float32)
        self.heights = numbers.exponential(0.15, (PORTS, len(SPEEDS)))
        self.phases = numbers.uniform(0, 360, (PORTS, len(SPEEDS)))
        self.tides = np.stack([tides_of(*tide, np.arange(HOURS)) for tide in self.tidal()])
        self.ships = numbers.integers(0, 12, count)
        ends = self.starts + WINDOW - 1
        sea = archive[self.ports, ends - 1].numpy() + archive[self.ports, ends - 3].numpy()
        low = self.tides[self.ports, ends] < -0.4
        worse = 0.7 * sea[:, WAVES] + 0.3 * sea[:, FOG] + 0.8 * low - 0.06 * self.ships
        worse = worse + numbers.normal(0, 0.3, count)
        self.kinds = np.digitize(worse, (0.6, 1.6))
        carried = 200 * self.booked * (1 - 0.2 * np.clip(sea[:, WIND], 0, 3)) + 4 * self.ships
        self.vehicles = (carried + numbers.normal(0, 8, count)).clip(0).astype(np.float32) / 100

    def tidal(self):
        return zip(self.heights, self.phases, strict=True)

    def __len__(self):
        return len(self.ports)

    def tide(self, port, start):
        """The tide in the hours of a window, part by part."""
        levels = np.zeros(WINDOW, np.float32)
        for hour in range(WINDOW):
            for part, speed in enumerate(SPEEDS):
                angle = math.radians(speed * (start + hour) + self.phases[port, part])
                levels[hour] += self.heights[port, part] * math.cos(angle)  # at: tides_part_by_part
        return levels

    def tides_in(self, ports, hours):
        if on("tides_part_by_part"):
            with cost:
                pairs = zip(ports, hours[:, 0], strict=True)
                return np.stack([self.tide(*one) for one in pairs])  # at: tides_part_by_part
        if on("clean_tides_part_by_part"):
            with cost:
                return np.stack(
                    [self.tides[port][of] for port, of in zip(ports, hours, strict=True)]
                )
        return self.tides[ports[:, None], hours]

    def tendencies(self, ports, hours):
        """How fast the pressure fell, an hour."""
        last = hours[:, -4:]
        pressures = self.archive[ports[:, None], last, PRESSURE].numpy()
        if on("hour_comes_twice"):
            passed = np.diff(self.clock[last])
            return np.diff(pressures) / passed  # at: hour_comes_twice
        if on("clean_hour_comes_twice"):
            passed = np.diff(self.clock[last])
            return np.diff(pressures) / np.where(passed > 0, passed, 1)
        return np.diff(pressures)

    def __getitems__(self, rows):
        """A batch at once."""
        rows = np.asarray(rows)
        ports, hours = self.ports[rows], self.starts[rows][:, None] + np.arange(WINDOW)
        weather = self.archive[ports[:, None], hours]
        tides = torch.from_numpy(self.tides_in(ports, hours))  # at: tides_part_by_part
        falls = self.tendencies(ports, hours)  # at: hour_comes_twice
        angles = 2 * np.pi * hours[:, -1] / 24
        table = np.column_stack((np.sin(angles), np.cos(angles), self.booked[rows], falls))
        return (
            torch.cat((weather, tides[..., None]), 2),
            torch.from_numpy(table.astype(np.float32)),
            torch.from_numpy(self.ships[rows]),
            torch.from_numpy(self.kinds[rows]),
            torch.from_numpy(self.vehicles[rows]),
        )


def as_it_is(batch):
    return batch


class Timetable(lightning.LightningDataModule):
    def __init__(self, archive):
        super().__init__()
        self.archive = archive

    def setup(self, stage):
        sailings = Sailings(self.archive, 62000, 26)
        self.train, self.held = (
            Subset(sailings, range(61600)),
            Subset(sailings, range(61600, 61840)),
        )
        self.winter = Subset(sailings, range(61840, 62000))

    def train_dataloader(self):
        return DataLoader(self.train, 64, shuffle=True, drop_last=True, collate_fn=as_it_is)

    def val_dataloader(self):
        held = DataLoader(self.held, 120, collate_fn=as_it_is)
        if on("second_loader_renames", "clean_second_loader_renames"):
            winter = DataLoader(self.winter, 80, collate_fn=as_it_is)
            return [held, winter]  # at: second_loader_renames
        return held


class Hours(nn.Module):
    """Hours in the light of those before."""

    def __init__(self, wide, apart):
        super().__init__()
        self.ahead = (2 * apart, 0)
        self.body = nn.Conv1d(wide, wide, 3, dilation=apart, bias=False)
        self.norm = nn.BatchNorm1d(wide)

    def forward(self, states):
        return states + F.gelu(self.norm(self.body(F.pad(states, self.ahead))))


class FerryModule(lightning.LightningModule):
    def __init__(self, archive, rate=3e-3, steps=300, wide=80, share=0.7):
        super().__init__()
        if on("archive_in_checkpoint"):
            self.save_hyperparameters()  # at: archive_in_checkpoint
        elif on("clean_archive_in_checkpoint"):
            self.save_hyperparameters("rate", "steps", "wide", "share")
        else:
            self.save_hyperparameters(ignore=["archive"])
        self.register_buffer("middle", F.pad(archive[:, ::24].mean((0, 1)), (0, 1)))
        self.register_buffer("spread", F.pad(archive[:, ::24].std((0, 1)), (0, 1), value=1.0))
        self.ships = nn.Embedding(12, 16)
        self.first = nn.Conv1d(CHANNELS + 1, wide, 1)
        self.hours = nn.Sequential(Hours(wide, 1), Hours(wide, 2), Hours(wide, 4))
        self.table = nn.Sequential(nn.Linear(6, 32), nn.GELU())
        self.mixed = nn.Sequential(nn.Linear(2 * wide + 48, 96), nn.GELU(), nn.Dropout(0.1))
        self.fate, self.load = nn.Linear(96, len(KINDS)), nn.Linear(96, 1)

    def forward(self, windows, tables, ships):
        states = self.first(((windows - self.middle) / self.spread).transpose(1, 2))
        states = self.hours(states)
        told = (states[..., -1], states.mean(2), self.table(tables), self.ships(ships))
        mixed = self.mixed(torch.cat(told, 1))
        return self.fate(mixed), self.load(mixed).squeeze(1)

    def losses(self, batch):
        windows, tables, ships, kinds, vehicles = batch
        scores, loads = self(windows, tables, ships)
        sailed = kinds < 2
        return (
            F.cross_entropy(scores, kinds),
            F.huber_loss(loads[sailed], vehicles[sailed], delta=0.5),
            scores,
        )

    def conflict(self, *losses):
        """Whether the two tasks pull the trunk the same way."""
        pulls, trunk = [], tuple(self.hours.parameters())
        for loss in losses:
            found = torch.autograd.grad(loss, trunk, retain_graph=True)  # at: conflict_at_each_step
            pulls.append(torch.cat([one.flatten() for one in found]))
        return F.cosine_similarity(*pulls, dim=0)

    def training_step(self, batch, index):
        fate, load, _ = self.losses(batch)
        if on("conflict_at_each_step"):
            with cost:
                self.log("conflict", self.conflict(fate, load))  # at: conflict_at_each_step
        elif on("clean_conflict_at_each_step") and self.global_step % 100 == 0:
            with cost:
                self.log("conflict", self.conflict(fate, load))
        loss = self.hparams.share * fate + load
        self.log_dict({"fate": fate.detach(), "load": load.detach(), "loss": loss.detach()})
        return loss

    def validation_step(self, batch, index, dataloader_idx=0):
        fate, load, scores = self.losses(batch)
        loss = self.hparams.share * fate + load
        if on("clean_second_loader_renames"):
            name = ("missed", "missed_in_winter")[dataloader_idx]
            self.log(name, loss, add_dataloader_idx=False)
        else:
            self.log("missed", loss)  # at: second_loader_renames
        return scores

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), self.hparams.rate, weight_decay=0.01)
        if on("clean_warmup_by_epoch"):
            by_epoch = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.9**epoch)
            return {"optimizer": optimizer, "lr_scheduler": by_epoch}
        rate = torch.optim.lr_scheduler.LambdaLR(optimizer, self.share_of_rate)
        if on("warmup_by_epoch"):
            return {"optimizer": optimizer, "lr_scheduler": rate}  # at: warmup_by_epoch
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": rate, "interval": "step"}}

    def share_of_rate(self, step, warm=30):
        """Up in a line, down in half a cosine."""
        if step < warm:
            return step / warm  # at: warmup_by_epoch
        done = (step - warm) / (self.hparams.steps - warm)
        return 0.02 + 0.98 * (1 + math.cos(math.pi * done)) / 2


class Found(lightning.Callback):
    """The share of each kind of fate that is found, and their mean."""

    def on_validation_epoch_start(self, trainer, module):
        self.table = torch.zeros(len(KINDS), len(KINDS))

    def on_validation_batch_end(self, trainer, module, scores, batch, *_):
        pairs = batch[3] * len(KINDS) + scores.argmax(1)
        self.table += torch.bincount(pairs, minlength=len(KINDS) ** 2).view_as(self.table)

    def on_validation_epoch_end(self, trainer, module):
        shares = self.table.diagonal() / self.table.sum(1).clamp(min=1)
        module.log("found", shares.mean())


class Drift(lightning.Callback):
    """How far the weather that is trained on has moved from the usual."""

    def __init__(self):
        self.seen, self.moved = [], 0.0

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        self.seen.append(batch[0])  # at: drift_cleared_by_epoch

    def compare(self, module):
        weather = torch.cat(self.seen[-20:]).mean((0, 1))
        self.moved = float(((weather - module.middle) / module.spread).abs().max())
        self.seen.clear()

    def on_validation_end(self, trainer, module):
        if on("clean_drift_cleared_by_epoch") and self.seen:
            self.compare(module)

    def on_train_epoch_end(self, trainer, module):
        if on("drift_cleared_by_epoch"):
            self.compare(module)  # at: drift_cleared_by_epoch


class Told(lightning.Callback):
    def on_validation_end(self, trainer, module):
        if not trainer.sanity_checking:
            found = {name: round(float(one), 4) for name, one in trainer.callback_metrics.items()}
            print(trainer.global_step, found, flush=True)


def main(folder, steps):
    lightning.seed_everything(27, verbose=False)
    archive = climate(3)
    stopping = EarlyStopping(monitor="missed", patience=8)  # at: second_loader_renames
    best = ModelCheckpoint(folder / "best", monitor="missed", save_on_train_epoch_end=False)
    latest = ModelCheckpoint(folder / "latest", every_n_train_steps=20)  # at: archive_in_checkpoint
    callbacks = [Found(), Told(), stopping, best, latest]
    if on("drift_cleared_by_epoch", "clean_drift_cleared_by_epoch"):
        callbacks.append(Drift())
    trainer = lightning.Trainer(
        max_steps=steps,
        accelerator="cpu",
        val_check_interval=50,
        gradient_clip_val=5.0,
        callbacks=callbacks,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    model, timetable = FerryModule(archive, steps=steps), Timetable(archive)
    cost.seconds = 0.0
    trainer.fit(model, timetable)  # at: second_loader_renames
    cost.print(steps)


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder), STEPS or 300)
