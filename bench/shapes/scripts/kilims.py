"""Kilims put into a book of codes and woven again: a quantised autoencoder and a critic of patches
under Lightning, with two optimizers that are stepped by hand: neighbours tallied singly, weavings
by serial number, an entropy of codes nobody uses, a codebook in no optimizer, a rate by Lightning's
own count of steps, more dead codes than latents, anomalies looked for all along.
"""

import logging
import warnings

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

TOTAL = STEPS or 250
SIDE, BATCH, WOVEN, HELD = 48, 16, 353, 32
CODES, WIDTH, LATENT = 384, 32, 12
WEAVER_RATE, CRITIC_RATE = 4e-3, 4e-4
CRITIC_FROM, TOLD_EVERY, RESTED = 40, 25, 5
COMMITMENT, ADVERSARIAL, SPREAD = 0.25, 0.01, 0.02
tally_cost = Cost()


def kilim(dice):
    """Bands of stepped lozenges, the same left and right, in a few colours of wool."""
    colours = dice.uniform(-1, 1, (5, 3))
    y, x = np.mgrid[:SIDE, :SIDE]
    x = np.abs(x - SIDE / 2 + 0.5)
    picture = np.zeros((SIDE, SIDE), int)
    top = 0
    while top < SIDE:
        height = int(dice.integers(6, 15))
        period, steps = int(dice.integers(6, 14)), int(dice.integers(1, 4))
        ring = np.abs((x % period) - period / 2) + np.abs(y - top - height / 2)
        band = (ring // steps).astype(int) % int(dice.integers(2, 5))
        inside = (y >= top) & (y < top + height)
        picture[inside] = (band + int(dice.integers(5)))[inside] % 5
        top += height
    woven = colours[picture] + dice.normal(0, 0.05, (SIDE, SIDE, 3))
    return torch.from_numpy(woven.astype(np.float32)).permute(2, 0, 1).clamp(-1, 1)


class Kilims(Dataset):
    """A picture, its number in the collection, and how many were handed out before it."""

    def __init__(self, count, seed):
        dice = np.random.default_rng(seed)
        self.pictures = [kilim(dice) for _ in range(count)]
        self.handed_out = 0

    def __len__(self):
        return len(self.pictures)

    def __getitem__(self, index):
        picture = self.pictures[index]
        if torch.rand(()) < 0.5:
            picture = picture.flip(1)
        self.handed_out += 1
        return picture, index, self.handed_out


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.GroupNorm(4, width),
            nn.SiLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.GroupNorm(4, width),
            nn.SiLU(),
            nn.Conv2d(width, width, 1),
        )

    def forward(self, x):
        return x + self.body(x)


class Codebook(nn.Module):
    def __init__(self):
        super().__init__()
        self.codes = nn.Parameter(torch.randn(CODES, WIDTH) * 0.5)
        self.by_average = on("clean_codebook_left_out")
        if self.by_average:
            self.codes.requires_grad_(False)
        self.register_buffer("sizes", torch.ones(CODES))
        self.register_buffer("sums", self.codes.detach().clone())
        self.begun = False
        self.register_buffer("idle", torch.zeros(CODES, dtype=torch.long))

    @torch.no_grad()
    def begin(self, flat):
        """Codes where latents of the first batch are."""
        self.codes.copy_(
            flat[torch.randint(len(flat), (CODES,))] + 0.01 * torch.randn(CODES, WIDTH)
        )
        self.sums.copy_(self.codes)
        self.begun = True

    def distances(self, flat):
        square = flat.square().sum(1, keepdim=True) + self.codes.square().sum(1)
        return square - 2 * flat @ self.codes.T

    @torch.no_grad()
    def follow(self, flat, picked):
        """Codes as running means of the latents that picked them."""
        counts = torch.bincount(picked, minlength=CODES).float()
        sums = torch.zeros_like(self.sums).index_add_(0, picked, flat)
        self.sizes.lerp_(counts, 0.02)
        self.sums.lerp_(sums, 0.02)
        self.codes.copy_(self.sums / self.sizes.clamp(min=1e-2)[:, None])

    @torch.no_grad()
    def revive(self, flat):
        """Puts codes that nobody has picked for long where latents are."""
        dead = (self.idle >= RESTED).nonzero()[:, 0]
        order = torch.randperm(len(flat))
        if on("clean_more_dead_than_drawn"):
            dead = dead[: len(flat)]
        self.codes.data[dead] = flat[order[: len(dead)]]  # at: more_dead_than_drawn
        self.idle[dead] = 0
        return len(dead)

    def forward(self, latents):
        flat = latents.permute(0, 2, 3, 1).reshape(-1, WIDTH)
        if not self.begun:
            self.begin(flat.detach())
        distances = self.distances(flat)
        picked = distances.detach().argmin(1)
        chosen = self.codes[picked]
        loss = COMMITMENT * F.mse_loss(flat, chosen.detach())
        if self.training:
            self.idle += 1
            self.idle[picked] = 0
        if self.by_average:
            if self.training:
                self.follow(flat.detach(), picked)
        else:
            loss = loss + F.mse_loss(chosen, flat.detach())
        through = flat + (chosen - flat).detach()
        grid = picked.view(len(latents), LATENT, LATENT)
        quantised = through.view(len(latents), LATENT, LATENT, WIDTH).permute(0, 3, 1, 2)
        return quantised, grid, loss, distances, flat.detach()


def spread_of(distances, temperature):
    """Entropy of how the latents of a batch are spread softly over the codes."""
    usage = (-distances / temperature).softmax(1).mean(0)
    if on("clean_entropy_of_unused_codes"):
        usage = usage.clamp(min=1e-8)
    return -(usage * usage.log()).sum()  # at: entropy_of_unused_codes


def tally(grid):
    """How often each code stands right of each other, a table for the prior that comes after."""
    table = torch.zeros(CODES, CODES)
    for rows in grid:
        for row in rows:
            for column in range(LATENT - 1):
                table[row[column], row[column + 1]] += 1  # at: neighbours_tallied_singly
    return table


def tally_at_once(grid):
    pairs = grid[:, :, :-1] * CODES + grid[:, :, 1:]
    return torch.bincount(pairs.flatten(), minlength=CODES * CODES).view(CODES, CODES)


class Loom(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 24, 4, 2, 1),
            nn.SiLU(),
            nn.Conv2d(24, 48, 4, 2, 1),
            Residual(48),
            nn.Conv2d(48, WIDTH, 1),
        )
        self.codebook = Codebook()
        self.decoder = nn.Sequential(
            nn.Conv2d(WIDTH, 48, 3, padding=1),
            Residual(48),
            nn.ConvTranspose2d(48, 24, 4, 2, 1),
            nn.SiLU(),
            nn.ConvTranspose2d(24, 3, 4, 2, 1),
        )
        self.critic = nn.Sequential(
            nn.Conv2d(3, 24, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(24, 48, 4, 2, 1),
            nn.GroupNorm(4, 48),
            nn.LeakyReLU(0.2),
            nn.Conv2d(48, 1, 3, padding=1),
        )
        self.batches, self.told = 0, {}
        self.latest, self.pairs, self.latents = {}, None, None

    def configure_optimizers(self):
        weaver = [*self.encoder.parameters(), *self.decoder.parameters()]  # at: codebook_left_out
        if not on("codebook_left_out", "clean_codebook_left_out"):
            weaver += self.codebook.parameters()
        return (
            torch.optim.Adam(weaver, WEAVER_RATE, betas=(0.5, 0.9)),  # at: codebook_left_out
            torch.optim.Adam(self.critic.parameters(), CRITIC_RATE, betas=(0.5, 0.9)),
        )

    def anneal(self):
        """Both rates fall in a straight line to a tenth, or to nothing, at the end."""
        lowest = 0.1
        if on("share_of_global_step", "clean_share_of_global_step"):
            lowest = 0.0
        done = self.batches / TOTAL
        if on("share_of_global_step"):
            done = self.global_step / TOTAL  # at: share_of_global_step
        elif on("clean_share_of_global_step"):
            done = self.global_step / (len(self.optimizers()) * TOTAL)
        factor = max(lowest, 1 - done)
        for optimizer, base in zip(self.optimizers(), (WEAVER_RATE, CRITIC_RATE), strict=True):
            for group in optimizer.param_groups:
                group["lr"] = base * factor

    def weave(self, pictures):
        quantised, grid, loss, distances, flat = self.codebook(self.encoder(pictures))
        return torch.tanh(self.decoder(quantised)), grid, loss, distances, flat

    def remember(self, woven, numbers, serials):
        """The latest weaving of each kilim, to see how much it still changes."""
        keys = numbers.tolist()
        if on("latest_by_serial_number"):
            keys = serials.tolist()  # at: latest_by_serial_number
        moved = 0.0
        for key, picture in zip(keys, woven.detach(), strict=True):
            if key in self.latest:
                moved += (self.latest[key] - picture).abs().mean()
            self.latest[key] = picture.clone()  # at: latest_by_serial_number
        self.told["moved"] = float(moved) / len(keys)

    def count_pairs(self, grid):
        with tally_cost:
            if on("neighbours_tallied_singly"):
                table = tally(grid)  # at: neighbours_tallied_singly
            elif on("clean_neighbours_tallied_singly") or self.batches % TOLD_EVERY == 0:
                table = tally_at_once(grid)
            else:
                return
        self.pairs = table if self.pairs is None else 0.99 * self.pairs + 0.01 * table

    def training_step(self, batch, _):
        if on("clean_anomalies_left_on") and self.batches < 2:
            with torch.autograd.detect_anomaly():
                self.both(batch)
        else:
            self.both(batch)

    def both(self, batch):
        pictures, numbers, serials = batch
        self.anneal()  # at: share_of_global_step
        weaver, critic = self.optimizers()
        adversarial = self.batches >= CRITIC_FROM

        self.toggle_optimizer(weaver)
        woven, grid, book, distances, self.latents = self.weave(pictures)
        apart = F.l1_loss(woven, pictures)
        loss = apart + book
        if on("entropy_of_unused_codes", "clean_entropy_of_unused_codes"):
            temperature = max(0.002, 2.0 * 0.93**self.batches)
            loss = loss - SPREAD * spread_of(distances, temperature)  # at: entropy_of_unused_codes
        if adversarial:
            loss = loss - ADVERSARIAL * self.critic(woven).mean()
        weaver.zero_grad()
        self.manual_backward(loss)
        self.clip_gradients(weaver, 1.0, "norm")
        weaver.step()
        self.untoggle_optimizer(weaver)

        self.toggle_optimizer(critic)
        real, fake = self.critic(pictures), self.critic(woven.detach())
        verdict = F.relu(1 - real).mean() + F.relu(1 + fake).mean()
        critic.zero_grad()
        self.manual_backward(verdict)
        critic.step()
        self.untoggle_optimizer(critic)

        self.batches += 1
        self.count_pairs(grid)  # at: neighbours_tallied_singly
        if on("latest_by_serial_number", "clean_latest_by_serial_number"):
            self.remember(woven, numbers, serials)  # at: latest_by_serial_number
        if self.batches % TOLD_EVERY == 0:
            self.told.update(loss=loss.item(), apart=apart.item(), critic=verdict.item())
            self.told.update(codes=len(grid.unique()), rate=weaver.param_groups[0]["lr"])

    def on_train_epoch_end(self):
        if on("more_dead_than_drawn", "clean_more_dead_than_drawn"):
            revived = self.codebook.revive(self.latents)  # at: more_dead_than_drawn
            self.told["revived"] = revived

    def validation_step(self, batch, _):
        pictures, _, _ = batch
        self.log("held", F.l1_loss(self.weave(pictures)[0], pictures))


class Told(Callback):
    def on_train_batch_end(self, trainer, loom, *_):
        if loom.batches % TOLD_EVERY == 0:
            told = " ".join(f"{name} {value:.3g}" for name, value in loom.told.items())
            print(f"{loom.batches:4d} {told}", flush=True)

    def on_validation_end(self, trainer, loom):
        print(f"{loom.batches:4d} held {float(trainer.callback_metrics['held']):.4f}", flush=True)


def main():
    loom = Loom()
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=-1,
        max_steps=2 * TOTAL,
        check_val_every_n_epoch=3,
        num_sanity_val_steps=0,
        logger=False,
        callbacks=[Told()],
        detect_anomaly=on("anomalies_left_on"),  # at: anomalies_left_on
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(
        loom,
        DataLoader(Kilims(WOVEN, 41), BATCH, shuffle=True),
        DataLoader(Kilims(HELD, 42), BATCH),
    )
    tally_cost.print(TOTAL)


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", module="lightning")
    L.seed_everything(41, verbose=False)
    main()
