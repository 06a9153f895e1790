"""Cheeses by their near-infrared spectra: which kind, how old and how sure of it, how salty; three
heads on one stack of convolutions, a LightningModule with metrics of its own, a LightningDataModule
that takes the curve of the lamp away, callbacks that tell what the training comes to.
"""

import logging
import math
import sys
import time
import warnings
from itertools import pairwise

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

UPDATES = STEPS or 250
KINDS, EACH, HELD, LENGTH = 6, 120, 208, 128
ROWS, ROWS_HELD = 24, 40
CHANNELS, RATE, WARM = (64, 128, 160), 1e-3, 5
SMOOTH, LEAN, ROUNDS = 1e4, 0.02, 2
SOLD = (0.2, 0.2, 0.2, 0.2, 0.18, 0.02)
BANDS, TOLD_EVERY = 4, 25
UPDATES_EACH_EPOCH = KINDS * EACH // ROWS
EPOCHS = math.ceil(UPDATES / UPDATES_EACH_EPOCH)
cost = Cost()


def spectra(dice, kinds):
    """Peaks that tell the kind, widen with age and shift with salt, on the curve of the lamp."""
    along = np.linspace(0, 1, LENGTH)
    places = np.random.default_rng(7).uniform(0.05, 0.95, (KINDS + 3, 4))
    age, salt = dice.gamma(4, 0.25, len(kinds)), dice.normal(0, 1, len(kinds))
    rows = np.zeros((len(kinds), LENGTH))
    for peak in range(4):
        middle = (places[kinds, peak] + 0.02 * salt)[:, None]
        wide = (0.015 + 0.02 * age)[:, None]
        rows += dice.uniform(0.6, 1.2, (len(kinds), 1)) * np.exp(-(((along - middle) / wide) ** 2))
    lamp = dice.normal(0, 1, (len(kinds), 4)) @ along ** np.arange(4)[:, None]
    rows += lamp + dice.normal(0, 0.35, rows.shape)
    return rows, (age - 1) / 0.5, salt


class Curve:
    """The curve of the lamp below the peaks."""

    def __init__(self):
        second = torch.eye(LENGTH, dtype=torch.float64).diff(n=2, dim=0)
        self.stiff = SMOOTH * second.T @ second
        powers = torch.linspace(-1, 1, LENGTH, dtype=torch.float64)[:, None] ** torch.arange(4)
        self.onto_cubics = powers @ torch.linalg.pinv(powers)

    def leaning(self, row):
        """By asymmetric least squares: points above the curve count less."""
        weights = torch.ones_like(row)
        for _ in range(ROUNDS):
            system = self.stiff + weights.diag()
            curve = torch.linalg.solve(system, weights * row)  # at: baseline_fitted_in_collate
            weights = torch.where(row > curve, LEAN, 1 - LEAN)
        return curve

    def cubic(self, rows):
        return rows @ self.onto_cubics.T


class Cellar(L.LightningDataModule):
    def __init__(self, seed):
        super().__init__()
        self.seed, self.curve = seed, Curve()

    def setup(self, stage=None):
        dice = np.random.default_rng(self.seed)
        self.train = self.table(dice, np.repeat(np.arange(KINDS), EACH))
        self.held = self.table(dice, dice.choice(KINDS, HELD, p=SOLD))

    def table(self, dice, kinds):
        rows, age, salt = spectra(dice, kinds)
        rows = torch.from_numpy(rows)
        if not on("baseline_fitted_in_collate", "clean_baseline_fitted_in_collate"):
            rows = rows - torch.stack([self.curve.leaning(row) for row in rows])
        return TensorDataset(
            rows,
            torch.from_numpy(kinds),
            torch.from_numpy(age).float(),
            torch.from_numpy(salt).float(),
        )

    def collate(self, cheeses):
        rows, kinds, age, salt = (torch.stack(each) for each in zip(*cheeses, strict=True))
        if on("baseline_fitted_in_collate"):
            with cost:
                curves = [self.curve.leaning(row) for row in rows]  # at: baseline_fitted_in_collate
                rows = rows - torch.stack(curves)
        elif on("clean_baseline_fitted_in_collate"):
            with cost:
                rows = rows - self.curve.cubic(rows)
        rows = rows / rows.std(1, keepdim=True)
        return {"spectra": rows.float()[:, None], "kind": kinds, "age": age, "salt": salt}

    def train_dataloader(self):
        if on("deliveries_left_in_order"):
            return DataLoader(
                self.train, ROWS, collate_fn=self.collate
            )  # at: deliveries_left_in_order
        if on("clean_deliveries_left_in_order"):
            drawn = RandomSampler(self.train)
            return DataLoader(self.train, ROWS, sampler=drawn, collate_fn=self.collate)
        return DataLoader(self.train, ROWS, shuffle=True, collate_fn=self.collate)

    def val_dataloader(self):
        return DataLoader(self.held, ROWS_HELD, collate_fn=self.collate)


class Measure:
    """Something that is gathered over an epoch."""

    def __init__(self):
        self.kept = []
        self.reset()

    def reset(self):
        self.kept.clear()

    def keep(self, tensor):
        self.kept.append(tensor.detach())  # at: reset_misses_parents_state


class Within(Measure):
    """Share of ages that were told to within a third."""

    def reset(self):
        super().reset()
        self.right = self.count = 0

    def update(self, said, true):
        self.right += ((said - true).abs() < 1 / 3).sum()
        self.count += len(true)

    def compute(self):
        return float(self.right) / max(1, self.count)


class Silent(Measure):
    """Share of units, layer by layer, that an epoch never excites."""

    def reset(self):
        if on("clean_reset_misses_parents_state"):
            super().reset()
        self.batches = 0  # at: reset_misses_parents_state

    def update(self, maps):
        for own in maps:
            self.keep(own)  # at: reset_misses_parents_state
        self.batches += 1

    def compute(self):
        last = self.kept[-self.batches * len(CHANNELS) :]
        layers = [last[layer :: len(CHANNELS)] for layer in range(len(CHANNELS))]
        most = [torch.stack([own.amax((0, 2)) for own in layer]).amax(0) for layer in layers]
        return [(own <= 0).float().mean().item() for own in most]


class Confusion(Measure):
    """How often each kind was taken for each."""

    def reset(self):
        super().reset()
        self.table = torch.zeros(KINDS, KINDS, dtype=torch.long)

    def update(self, scores, kinds):
        pairs = kinds * KINDS + scores.argmax(1)
        if on("bincount_without_minlength"):
            counts = torch.bincount(pairs)  # at: bincount_without_minlength
        else:
            counts = torch.bincount(pairs, minlength=KINDS * KINDS)
        self.table += counts.view(KINDS, KINDS)  # at: bincount_without_minlength

    def compute(self):
        recalls = self.table.diagonal() / self.table.sum(1).clamp(min=1)
        return recalls.mean().item()


class Taster(nn.Module):
    def __init__(self):
        super().__init__()
        sizes = (1, *CHANNELS)
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.Conv1d(own, following, 7, stride=2, padding=3),
                nn.GroupNorm(8, following),
                nn.ReLU(),
            )
            for own, following in pairwise(sizes)
        )
        flat = CHANNELS[-1] * LENGTH // 2 ** len(CHANNELS)
        self.joined = nn.Sequential(nn.Linear(flat, 128), nn.ReLU(), nn.Dropout(0.1))
        self.kind, self.age, self.salt = nn.Linear(128, KINDS), nn.Linear(128, 2), nn.Linear(128, 1)
        nn.init.constant_(self.age.bias, 1.0)

    def forward(self, x):
        maps = []
        for layer in self.layers:
            x = layer(x)
            maps.append(x)
        x = self.joined(x.flatten(1))
        age, spread = self.age(x).unbind(1)
        return {
            "kind": self.kind(x),
            "age": age,
            "variance": self.positive(spread),  # at: variance_falls_to_nothing
            "salt": self.salt(x)[:, 0],
            "maps": maps,
        }

    @staticmethod
    def positive(raw):
        if on("variance_falls_to_nothing"):
            return F.relu(raw)  # at: variance_falls_to_nothing
        if on("clean_variance_falls_to_nothing"):
            return F.relu(raw) + 0.02
        return F.softplus(raw) + 0.01


class Tasting(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = Taster()
        self.within, self.confusion = Within(), Confusion()
        self.silent = None
        if on("reset_misses_parents_state", "clean_reset_misses_parents_state"):
            self.silent = Silent()

    def losses(self, said, batch):
        error = (said["age"] - batch["age"]).square()
        variance = said["variance"]
        return {
            "kind": F.cross_entropy(said["kind"], batch["kind"]),
            "age": 0.5
            * (torch.log(variance) + error / variance).mean(),  # at: variance_falls_to_nothing
            "salt": F.smooth_l1_loss(said["salt"], batch["salt"]),
        }

    def training_step(self, batch, index):
        said = self.model(batch["spectra"])
        losses = self.losses(said, batch)  # at: variance_falls_to_nothing
        if self.silent is not None:
            self.silent.update(said["maps"])  # at: reset_misses_parents_state
        total = losses["kind"] + losses["age"] + 0.5 * losses["salt"]
        return {"loss": total, "parts": {name: one.detach() for name, one in losses.items()}}

    def on_train_epoch_end(self):
        if self.silent is not None:
            told = " ".join(f"{share:.2f}" for share in self.silent.compute())
            self.print(f"epoch {self.current_epoch}: silent {told}")
            self.silent.reset()  # at: reset_misses_parents_state

    def validation_step(self, batch, index):
        said = self.model(batch["spectra"])
        self.within.update(said["age"], batch["age"])
        self.confusion.update(said["kind"], batch["kind"])  # at: bincount_without_minlength

    def on_validation_epoch_end(self):
        self.log("val_recall", self.confusion.compute())
        self.log("val_within", self.within.compute())
        self.confusion.reset()
        self.within.reset()

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), RATE, weight_decay=0.01)
        whole = int(self.trainer.estimated_stepping_batches)
        schedulers = torch.optim.lr_scheduler
        every = "step"
        if on("cosine_turns_within_epoch"):
            warm = schedulers.LinearLR(optimizer, 0.2, total_iters=WARM)
            down = schedulers.CosineAnnealingLR(
                optimizer, self.trainer.max_epochs
            )  # at: cosine_turns_within_epoch
            schedule = schedulers.SequentialLR(optimizer, [warm, down], [WARM])
        elif on("clean_cosine_turns_within_epoch"):
            schedule = schedulers.CosineAnnealingLR(optimizer, self.trainer.max_epochs)
            every = "epoch"
        else:
            warm = schedulers.LinearLR(optimizer, 0.2, total_iters=WARM)
            down = schedulers.CosineAnnealingLR(optimizer, max(1, whole - WARM))
            schedule = schedulers.SequentialLR(optimizer, [warm, down], [WARM])
        told = {"scheduler": schedule, "interval": every}  # at: cosine_turns_within_epoch
        return {"optimizer": optimizer, "lr_scheduler": told}


class Told(Callback):
    """A line now and then, and the clock."""

    def on_train_start(self, trainer, module):
        self.begun, cost.seconds = time.perf_counter(), 0.0

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        if trainer.global_step % TOLD_EVERY == 0:
            parts = " ".join(f"{name} {one:.3f}" for name, one in outputs["parts"].items())
            rate = trainer.optimizers[0].param_groups[0]["lr"]
            print(
                trainer.global_step,
                f"loss {outputs['loss']:.4f} {parts} rate {rate:.1e}",
                flush=True,
            )

    def on_validation_end(self, trainer, module):
        figures = trainer.callback_metrics
        recall, within = figures["val_recall"], figures["val_within"]
        print(trainer.global_step, f"recall {recall:.3f} within {within:.3f}", flush=True)

    def on_train_end(self, trainer, module):
        took = (time.perf_counter() - self.begun) * 1000 / trainer.global_step
        print(f"{trainer.global_step} updates, {took:.1f} ms each", flush=True)
        cost.print(trainer.global_step)


class Bands(Callback):
    """Which bands of the spectrum the kinds are told by."""

    def __init__(self):
        self.weights = torch.zeros(BANDS)

    @torch.no_grad()
    def weigh(self, module, batch):
        module.eval()
        rows, wide = batch["spectra"], LENGTH // BANDS
        whole = F.cross_entropy(module.model(rows)["kind"], batch["kind"])
        for band in range(BANDS):
            blank = rows.clone()
            blank[..., band * wide : (band + 1) * wide] = 0
            scores = module.model(blank)["kind"]  # at: bands_blanked_each_step
            lost = F.cross_entropy(scores, batch["kind"]) - whole
            self.weights[band].lerp_(lost, 0.1)
        module.train()

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        if on("bands_blanked_each_step") or index == 0:  # at: bands_blanked_each_step
            with cost:
                self.weigh(module, batch)  # at: bands_blanked_each_step

    def on_train_end(self, trainer, module):
        print("bands", " ".join(f"{weight:.2f}" for weight in self.weights.tolist()))


def main():
    callbacks = [Told()]
    if on("bands_blanked_each_step", "clean_bands_blanked_each_step"):
        callbacks.append(Bands())
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=EPOCHS,
        max_steps=UPDATES,
        gradient_clip_val=5.0,
        num_sanity_val_steps=0,
        callbacks=callbacks,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Tasting(), datamodule=Cellar(33))
    return 0


if __name__ == "__main__":
    warnings.filterwarnings("ignore", module="lightning")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    L.seed_everything(33, verbose=False)
    sys.exit(main())
