"""Locomotives that are about to fail, found by what their sensors did not foretell: a denoising
autoencoder and a forecaster on its code under Lightning, two optimizers stepped by hand, windows
that begin elsewhere in each epoch, anomalies put into what is held back: gaps carried over, slow
drifts taken out, the forecaster held still meanwhile, rates that warm up, distances of forecasts,
limits for alarms, an archive of the worst windows.
"""

import logging
import sys
import tempfile
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

UPDATES = STEPS or 200
SENSORS, CAUSES, PAST, AHEAD, BATCH = 16, 5, 128, 16, 48
JOURNEYS, LONG, HELD, STRIDE, DRIFT, THINNED = 12, 5000, 96, 61, 61, 3
CODE, WIDTH, NOISE, LOST = 64, 48, 0.15, 0.004
RATES, WARM, CLIP, AGREE = (2e-3, 3e-3), 20, 2.0, 0.1
TOLD_EVERY, NEAR, KEEP, RIDGE = 20, 8, 0.95, 0.05
PENDING, ALARM, SEED = 8, 1.6, 1829
GAPS = "gaps_carried_reading_by_reading", "clean_gaps_carried_reading_by_reading"
DRIFTS = "drift_removed_at_each_reload", "clean_drift_removed_at_each_reload"
DISTANCES = "covariance_inverted_for_each_row", "clean_covariance_inverted_for_each_row"
LIMITS = "residuals_whole_until_fit_ends", "clean_residuals_whole_until_fit_ends"
WARMED = "warmup_stepped_for_first_alone", "clean_warmup_stepped_for_first_alone"
ARCHIVED = "permit_lost_with_nothing_to_save", "clean_permit_lost_with_nothing_to_save"
cost = Cost()


def journey(dice, mixing):
    """Speed, load and the like, and what the sensors make of them; they drift and lose contact."""
    time_ = np.arange(LONG)[:, None]
    rates, phases = dice.uniform(0.02, 0.25, (6, CAUSES)), dice.uniform(0, 6.3, (6, CAUSES))
    causes = sum(np.sin(time_ * rate + phase) for rate, phase in zip(rates, phases, strict=True))
    readings = np.tanh(causes @ mixing) + 0.1 * dice.normal(size=(LONG, SENSORS))
    readings += np.cumsum(0.01 * dice.normal(size=(LONG, SENSORS)), 0)
    for sensor in range(SENSORS):
        for begin in np.flatnonzero(dice.random(LONG) < LOST):
            readings[begin : begin + dice.integers(1, 9), sensor] = np.nan
    return readings.astype(np.float32)


def carried(readings):
    """Where a reading is missing the last one holds."""
    missing = np.isnan(readings)
    last = np.where(missing, 0, np.arange(len(readings))[:, None])
    np.maximum.accumulate(last, 0, out=last)
    return np.nan_to_num(np.take_along_axis(readings, last, 0))


def carried_singly(readings):
    filled = readings.copy()
    for sensor in range(filled.shape[1]):
        last = 0.0
        for moment in range(len(filled)):
            if np.isnan(filled[moment, sensor]):  # at: gaps_carried_reading_by_reading
                filled[moment, sensor] = last
            last = filled[moment, sensor]  # at: gaps_carried_reading_by_reading
    return filled


def without_drift(readings):
    """Less the median of the readings around, over how far they usually are from it."""
    padded = np.pad(carried(readings), ((DRIFT // 2, DRIFT // 2), (0, 0)), mode="edge")
    around = np.lib.stride_tricks.sliding_window_view(padded, DRIFT, axis=0)[::THINNED]
    middles = np.median(around, axis=-1)  # at: drift_removed_at_each_reload
    drift = np.repeat(middles, THINNED, axis=0)[: len(readings)]
    steady = readings - drift
    return steady / (np.nanstd(steady, axis=0) + 1e-3)


class Windows(Dataset):
    """What was read for a while, and what was read thereafter."""

    def __init__(self, journeys, first):
        self.journeys = journeys
        self.starts = [
            (number, start)
            for number, one in enumerate(journeys)
            for start in range(first, len(one) - PAST - AHEAD, STRIDE)
        ]

    def __len__(self):
        return len(self.starts)

    def __getitem__(self, index):
        number, start = self.starts[index]
        window = self.journeys[number][start : start + PAST + AHEAD]
        if on(*GAPS):
            with cost:
                if on("gaps_carried_reading_by_reading"):
                    window = carried_singly(window)  # at: gaps_carried_reading_by_reading
                else:
                    window = carried(window)
        window = torch.from_numpy(window)
        return window[:PAST], window[PAST:]


class Failing(Dataset):
    """Windows of which every third ends badly: a sensor that sticks, shakes or is off."""

    def __init__(self, journeys, count, seed):
        dice = np.random.default_rng(seed)
        self.windows, self.labels = [], torch.arange(count) % 3 == 0
        for label in self.labels.tolist():
            start = dice.integers(LONG - PAST - AHEAD)
            window = journeys[dice.integers(len(journeys))][start : start + PAST + AHEAD].copy()
            if label:
                begin, sensors = dice.integers(64, 120), dice.permutation(SENSORS)[:4]
                kind = dice.integers(3)
                if kind == 0:
                    window[begin:, sensors] = window[begin, sensors]
                elif kind == 1:
                    window[begin:, sensors] += dice.normal(0, 1.2, (len(window) - begin, 4))
                else:
                    window[begin:, sensors] += dice.choice([-1.8, 1.8], 4)
            self.windows.append(torch.from_numpy(carried(window).astype(np.float32)))

    def __len__(self):
        return len(self.windows)

    def __getitem__(self, index):
        window = self.windows[index]
        return window[:PAST], window[PAST:], self.labels[index]


class Depot(L.LightningDataModule):
    def setup(self, stage):
        dice = np.random.default_rng(SEED)
        mixing = dice.normal(0, 0.5, (CAUSES, SENSORS))
        self.raw = [journey(dice, mixing) for _ in range(JOURNEYS)]
        if not on(*GAPS):
            self.raw = [carried(one) for one in self.raw]
        self.journeys = [without_drift(one) for one in self.raw]
        held = [without_drift(journey(dice, mixing)) for _ in range(3)]
        self.held = Failing(held, HELD, SEED + 1)

    def train_dataloader(self):
        """The windows of this epoch."""
        journeys, first = self.journeys, 0
        if on(*DRIFTS):
            first = 7 * self.trainer.current_epoch % STRIDE
        if on("drift_removed_at_each_reload"):
            with cost:
                journeys = [
                    without_drift(one) for one in self.raw
                ]  # at: drift_removed_at_each_reload
        return DataLoader(Windows(journeys, first), BATCH, shuffle=True, drop_last=True)

    def val_dataloader(self):
        return DataLoader(self.held, BATCH)


class Coder(nn.Module):
    def __init__(self):
        super().__init__()
        self.inward = nn.Sequential(
            nn.Conv1d(SENSORS, WIDTH, 5, 2, 2),
            nn.GELU(),
            nn.Conv1d(WIDTH, CODE, 5, 2, 2),
            nn.GELU(),
            nn.Conv1d(CODE, CODE, 3, 1, 1),
        )
        self.outward = nn.Sequential(
            nn.ConvTranspose1d(CODE, WIDTH, 4, 2, 1),
            nn.GELU(),
            nn.ConvTranspose1d(WIDTH, WIDTH, 4, 2, 1),
            nn.GELU(),
            nn.Conv1d(WIDTH, SENSORS, 3, 1, 1),
        )

    def encode(self, readings):
        return self.inward(readings.transpose(1, 2))

    def decode(self, code):
        return self.outward(code).transpose(1, 2)


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.memory = nn.GRU(CODE, CODE, batch_first=True)
        self.head = nn.Linear(CODE, AHEAD * SENSORS)

    def forward(self, code):
        _, last = self.memory(code.transpose(1, 2))
        return self.head(last[0]).unflatten(1, (AHEAD, SENSORS))


def area(scores, labels):
    """How often a failing window scores higher than a sound one."""
    ranks = scores.argsort().argsort().float()
    bad = int(labels.sum())
    ahead = ranks[labels].sum() - bad * (bad - 1) / 2
    return ahead / (bad * (len(labels) - bad))


def share(update):
    if on(*WARMED):
        return min(1.0, update / WARM)  # at: warmup_stepped_for_first_alone
    return min(1.0, (update + 1) / WARM)


class Detector(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.coder, self.forecaster = Coder(), Forecaster()
        self.update, self.judged = 0, []

    def configure_optimizers(self):
        coder = torch.optim.AdamW(self.coder.parameters(), RATES[0])
        forecaster = torch.optim.AdamW(self.forecaster.parameters(), RATES[1])
        schedules = [
            torch.optim.lr_scheduler.LambdaLR(one, share) for one in (coder, forecaster)
        ]  # at: warmup_stepped_for_first_alone
        return [coder, forecaster], schedules

    def restore(self, past):
        """Cleans what was blurred; what is foretold of it should stay the same."""
        noised = past + NOISE * torch.randn_like(past)
        restored = self.coder.decode(self.coder.encode(noised))
        with torch.no_grad():
            foretold = self.forecaster(self.coder.encode(past))
        again = self.forecaster(self.coder.encode(restored))
        loss = F.smooth_l1_loss(restored, past) + AGREE * F.mse_loss(again, foretold)
        return loss, restored

    def learn_to_restore(self, past, optimizer):
        """The forecaster is asked, and does not learn of it."""
        if on("clean_forecaster_stays_toggled_off"):
            with optimizer.toggle_model():
                loss, restored = self.restore(past)
                self.manual_backward(loss)
            return loss, restored
        self.toggle_optimizer(optimizer)  # at: forecaster_stays_toggled_off
        loss, restored = self.restore(past)
        self.manual_backward(loss)
        if not on("forecaster_stays_toggled_off"):
            self.untoggle_optimizer(optimizer)
        return loss, restored

    def training_step(self, batch, number):
        past, future = batch
        optimizers = self.optimizers()
        for optimizer in optimizers:
            optimizer.zero_grad()
        restoring, restored = self.learn_to_restore(
            past, optimizers[0]
        )  # at: forecaster_stays_toggled_off
        foretold = self.forecaster(self.coder.encode(past))
        foretelling = F.smooth_l1_loss(foretold, future)
        self.manual_backward(foretelling)
        for optimizer in optimizers:
            self.clip_gradients(optimizer, CLIP, "norm")
            optimizer.step()
        self.warm_up()
        self.update += 1
        losses = {"restoring": restoring, "foretelling": foretelling}
        self.log_dict(losses, on_step=True)
        return {
            "loss": (restoring + foretelling).detach(),
            "residuals": (restored - past).detach(),
            "missed": (foretold - future).detach(),
        }

    def warm_up(self):
        schedules = self.lr_schedulers()
        if on("warmup_stepped_for_first_alone"):
            schedules[0].step()  # at: warmup_stepped_for_first_alone
            return
        for schedule in schedules:
            schedule.step()

    def validation_step(self, batch, number):
        past, future, labels = batch
        code = self.coder.encode(past)
        restored = (self.coder.decode(code) - past).square().mean(1).amax(1)
        missed = (self.forecaster(code) - future).square().mean(1)
        self.log("held_missed", missed[~labels].mean(), on_epoch=True)
        self.judged.append((restored + missed.amax(1), labels))

    def on_validation_epoch_end(self):
        scores, labels = (torch.cat(part) for part in zip(*self.judged, strict=True))
        self.judged.clear()
        self.log("auc", area(scores, labels))


class Told(Callback):
    def on_train_start(self, trainer, detector):
        cost.seconds, self.begun = 0.0, time.perf_counter()

    def on_train_batch_end(self, trainer, detector, outputs, batch, number):
        if detector.update % TOLD_EVERY == 0:
            told = trainer.callback_metrics
            names = [name for name in ("restoring", "foretelling") if name in told]
            print(detector.update, *(f"{name} {told[name]:.3f}" for name in names), flush=True)

    def on_validation_end(self, trainer, detector):
        told = trainer.callback_metrics
        print(f"auc {told['auc']:.3f} missed {told['held_missed']:.3f}", flush=True)

    def on_train_end(self, trainer, detector):
        took = (time.perf_counter() - self.begun) * 1000 / detector.update
        print(f"{detector.update} updates, {took:.1f} ms each", flush=True)
        cost.print(detector.update)


class Distances(Callback):
    """How unusual the forecasts are off, by how they usually vary together."""

    def __init__(self):
        size = NEAR * SENSORS
        self.covariance, self.ridge = torch.eye(size), RIDGE * torch.eye(size)
        self.farthest = []

    def distances(self, missed):
        if on("clean_covariance_inverted_for_each_row"):
            root = torch.linalg.cholesky(self.covariance + self.ridge)
            return torch.linalg.solve_triangular(root, missed.T, upper=False).square().sum(0)
        found = []
        for row in missed:
            inverse = torch.linalg.inv(
                self.covariance + self.ridge
            )  # at: covariance_inverted_for_each_row
            found.append(row @ inverse @ row)  # at: covariance_inverted_for_each_row
        return torch.stack(found)

    def on_train_batch_end(self, trainer, detector, outputs, batch, number):
        missed = outputs["missed"][:, :NEAR].flatten(1)
        self.covariance.lerp_(missed.T @ missed / len(missed), 1 - KEEP)
        with cost:
            far = self.distances(missed)  # at: covariance_inverted_for_each_row
        self.farthest.append(far.max().item())


class Limits(Callback):
    """From which residual on a sensor gives the alarm: one in a thousand was larger."""

    def __init__(self):
        self.residuals = []

    def on_train_batch_end(self, trainer, detector, outputs, batch, number):
        residuals = outputs["residuals"].abs()
        if on("clean_residuals_whole_until_fit_ends"):
            residuals = residuals.amax(1)
        self.residuals.append(residuals)  # at: residuals_whole_until_fit_ends

    def on_fit_end(self, trainer, detector):
        every = torch.cat(self.residuals).flatten(0, -2)
        limits = every.kthvalue(int(0.999 * len(every)), 0).values
        print(f"limits {limits.min():.2f} to {limits.max():.2f}", flush=True)


class Archive(Callback):
    """Saves windows with a large residual behind the training's back, a few batches at a time."""

    def __init__(self, folder):
        self.folder, self.saved = folder, 0
        self.permits = threading.BoundedSemaphore(PENDING)
        self.pool = ThreadPoolExecutor(2, thread_name_prefix="archive")

    def save(self, update, past, residuals):
        worst = residuals.square().mean(1).amax(1) > ALARM
        if not worst.any():
            return  # at: permit_lost_with_nothing_to_save
        np.savez(self.folder / f"{update:05}.npz", past=past[worst], residuals=residuals[worst])
        self.saved += int(worst.sum())
        self.permits.release()  # at: permit_lost_with_nothing_to_save

    def save_and_release(self, update, past, residuals):
        try:
            worst = residuals.square().mean(1).amax(1) > ALARM
            if not worst.any():
                return
            np.savez(self.folder / f"{update:05}.npz", past=past[worst], residuals=residuals[worst])
            self.saved += int(worst.sum())
        finally:
            self.permits.release()

    def on_train_batch_end(self, trainer, detector, outputs, batch, number):
        self.permits.acquire()  # at: permit_lost_with_nothing_to_save
        save = self.save if on("permit_lost_with_nothing_to_save") else self.save_and_release
        self.pool.submit(save, detector.update, batch[0], outputs["residuals"])

    def on_fit_end(self, trainer, detector):
        self.pool.shutdown()
        print(f"{self.saved} windows in the archive", flush=True)


def main(folder):
    callbacks = [Told(), ModelCheckpoint(folder, monitor="auc", mode="max")]
    for names, callback in ((DISTANCES, Distances), (LIMITS, Limits)):
        if on(*names):
            callbacks.append(callback())
    if on(*ARCHIVED):
        callbacks.append(Archive(folder))
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=-1,
        # Each update counts as two: both optimizers step.
        max_steps=2 * UPDATES,
        reload_dataloaders_every_n_epochs=1 if on(*DRIFTS) else 0,
        callbacks=callbacks,
        logger=CSVLogger(folder),
        log_every_n_steps=10,
        num_sanity_val_steps=0,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(
        Detector(), Depot()
    )  # at: drift_removed_at_each_reload gaps_carried_reading_by_reading
    return 0


if __name__ == "__main__":
    warnings.filterwarnings("ignore", module="lightning")
    torch.set_num_threads(1)
    L.seed_everything(SEED, verbose=False)
    with tempfile.TemporaryDirectory() as place:
        sys.exit(main(Path(place)))
