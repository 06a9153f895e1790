"""Who walks there, from a phone's accelerometer and without a label at first: contrast against a
queue of a slow encoder's keys, an adversary that guesses the phone, under Lightning's Fabric. Walks
stretched sample by sample, a mean with a graph, a walker alone in a batch, an encoder left as it
was judged, a cycle turned by the epoch, a queue that batches do not fill, a best that is never
remembered.
"""

import copy
import math
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import lightning as L
import numpy as np
import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

AXES, LENGTH, WALKERS, PHONES = 3, 256, 60, 4
clock = Cost()


@dataclass
class Config:
    steps: int = STEPS or 250
    walks: int = 1440
    held: int = 240
    batch: int = 48
    width: int = 64
    queue: int = 4000 if on("queue_not_of_batches", "clean_queue_not_of_batches") else 1920
    slowness: float = 0.98
    heat: float = 0.1
    rate: float = 3e-3
    rate_of_guess: float = 1e-3
    confusion: float = 0.1
    named: float = 0.3
    named_from: int = 60
    judged_every: int = 50
    told_every: int = 25
    longest: float = 10.0
    folder: Path = field(default_factory=Path)


def walked(count, seed):
    """Accelerations of walks, (count, axes, length), whose they are and by which phone."""
    people, dice = np.random.default_rng(5), np.random.default_rng(seed)
    pace = people.uniform(1.4, 2.4, WALKERS)
    strength = people.uniform(0.2, 1.0, (WALKERS, AXES, 4))
    shift = people.uniform(0, 2 * np.pi, (WALKERS, AXES, 4))
    tilt = np.linalg.qr(people.normal(size=(PHONES, AXES, AXES)))[0]
    walker, phone = dice.integers(WALKERS, size=count), dice.integers(PHONES, size=count)
    time = np.arange(LENGTH) / 50
    own = pace[walker] * dice.normal(1, 0.03, count)
    phase = 2 * np.pi * (own[:, None] * time + dice.random((count, 1)))
    waves = np.arange(1, 5)[None, None, :, None] * phase[:, None, None]
    walks = (strength[walker][..., None] * np.sin(waves + shift[walker][..., None])).sum(2)
    walks = 0.5 * walks + 0.5 * np.einsum("cij,cjt->cit", tilt[phone], walks)
    walks += dice.normal(0, 0.1, walks.shape)
    return walks.astype(np.float32), walker, phone


class Walks(Dataset):
    """Each walk twice: as if walked unevenly, and with the phone held otherwise."""

    def __init__(self, count, seed):
        self.walks, self.walkers, self.phones = walked(count, seed)
        self.dice = np.random.default_rng(seed + 1)

    def __len__(self):
        return len(self.walks)

    def when(self):
        """Where to look for each sample: a time that runs unevenly."""
        knots = np.cumsum(self.dice.uniform(0.7, 1.3, 9))
        along = np.interp(np.linspace(0, 8, LENGTH), np.arange(9), knots - knots[0])
        return along / along[-1] * (LENGTH - 1.001)

    def stretched(self, walk):
        when = self.when()
        if on("warped_sample_by_sample"):
            with clock:
                warped = np.empty_like(walk)
                for place, moment in enumerate(when):
                    before = int(moment)
                    rest = moment - before
                    near = (1 - rest) * walk[:, before] + rest * walk[:, before + 1]
                    warped[:, place] = near  # at: warped_sample_by_sample
                return warped
        if on("clean_warped_sample_by_sample"):
            with clock:
                places = np.arange(LENGTH)
                return np.stack([np.interp(when, places, axis) for axis in walk])
        before = when.astype(int)
        return walk[:, before] + (when - before) * (walk[:, before + 1] - walk[:, before])

    def view(self, walk, stretch):
        if stretch:
            walk = self.stretched(walk)  # at: warped_sample_by_sample
        walk = walk * self.dice.uniform(0.8, 1.2, (AXES, 1))
        walk = walk + self.dice.normal(0, 0.05, walk.shape)
        return walk.astype(np.float32)

    def __getitem__(self, index):
        walk = self.walks[index]
        one, two = self.view(walk, True), self.view(walk, False)
        return one, two, self.walkers[index], self.phones[index]


class Encoder(nn.Module):
    def __init__(self, width):
        super().__init__()
        layers, last = [], AXES
        for channels, kernel in ((24, 9), (48, 7), (80, 5)):
            layers += [
                nn.Conv1d(last, channels, kernel, stride=2, padding=kernel // 2),
                nn.BatchNorm1d(channels),
                nn.GELU(),
            ]
            last = channels
        self.body = nn.Sequential(*layers)
        self.head = nn.Sequential(
            nn.Linear(2 * last, 128), nn.GELU(), nn.Dropout(0.1), nn.Linear(128, width)
        )

    def forward(self, walks):
        x = self.body(walks)
        return F.normalize(self.head(torch.cat([x.mean(-1), x.amax(-1)], 1)), dim=1)


def guesser(width):
    """Guesses the phone from what the encoder says."""
    return nn.Sequential(
        nn.Linear(width, 1024), nn.GELU(), nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, PHONES)
    )


class Queue:
    """The last keys, the oldest replaced first."""

    def __init__(self, size, width):
        self.keys = F.normalize(torch.randn(size, width), dim=1)
        self.at, self.taken = 0, 0

    @torch.no_grad()
    def put(self, keys):
        count, size = len(keys), len(self.keys)
        if on("clean_queue_not_of_batches"):
            self.keys[(self.at + torch.arange(count)) % size] = keys
        else:
            self.keys[self.at : self.at + count] = keys  # at: queue_not_of_batches
        self.at = (self.at + count) % size
        self.taken += count

    @property
    def full(self):
        return self.taken >= len(self.keys)


def contrast(queries, keys, queue, heat):
    """Each query's own key against all of the queue."""
    own = (queries * keys).sum(1, keepdim=True)
    scores = torch.cat([own, queries @ queue.keys.T.clone()], 1) / heat
    return F.cross_entropy(scores, torch.zeros(len(scores), dtype=torch.long))


def same_walker(queries, walkers, heat):
    """Walks of a walker are to lie nearer to each other than to others' walks."""
    oneself = torch.eye(len(queries), dtype=torch.bool)
    scores = (queries @ queries.T / heat).masked_fill(oneself, -1e4)
    logs = scores.log_softmax(1)
    same = (walkers[:, None] == walkers) & ~oneself
    summed, count = (logs * same).sum(1), same.sum(1)
    if on("walker_alone_in_batch"):
        return -(summed / count).mean()  # at: walker_alone_in_batch
    if on("clean_walker_alone_in_batch"):
        return -(summed / count.clamp(min=1)).mean()
    accompanied = count > 0
    return -(summed[accompanied] / count[accompanied]).sum() / len(queries)


@torch.no_grad()
def follow(slow, encoder, slowness):
    for own, other in zip(slow.parameters(), encoder.parameters(), strict=True):
        own.lerp_(other, 1 - slowness)


@torch.no_grad()
def judged(encoder, known, asked):
    """The share of walks whose nearest known walk is by the same walker."""
    was = encoder.training
    encoder.eval()  # at: judged_and_left_so
    places = [
        torch.cat([encoder(part) for part in torch.from_numpy(own.walks).split(120)])
        for own in (known, asked)
    ]
    nearest = (places[1] @ places[0].T).argmax(1).numpy()
    if on("clean_judged_and_left_so"):
        encoder.train(was)
    elif not on("judged_and_left_so"):
        encoder.train()
    return float((known.walkers[nearest] == asked.walkers).mean())


class Training:
    def __init__(self, fabric, config):
        self.fabric, self.config = fabric, config
        encoder, guess = Encoder(config.width), guesser(config.width)
        self.slow = copy.deepcopy(encoder).requires_grad_(False)
        self.encoder, self.for_encoder = fabric.setup(
            encoder, torch.optim.AdamW(encoder.parameters(), lr=config.rate, weight_decay=1e-3)
        )
        self.guess, self.for_guess = fabric.setup(
            guess, torch.optim.Adam(guess.parameters(), lr=config.rate_of_guess)
        )
        self.cycle = torch.optim.lr_scheduler.OneCycleLR(
            self.for_encoder, max_lr=config.rate, total_steps=config.steps + 1, pct_start=0.2
        )  # at: cycle_turned_by_epoch
        self.fading = torch.optim.lr_scheduler.ExponentialLR(self.for_guess, 0.9)
        self.queue = Queue(config.queue, config.width)
        self.step, self.unsure, self.smooth, self.best = 0, math.log(PHONES), 0.0, math.inf

    def save(self, name):
        state = {
            "encoder": self.encoder,
            "guess": self.guess,
            "slow": self.slow.state_dict(),
            "for_encoder": self.for_encoder,
            "for_guess": self.for_guess,
            "queue": self.queue.keys,
            "step": self.step,
        }
        with clock:
            self.fabric.save(self.config.folder / name, state)  # at: best_never_remembered

    def teach_guess(self, told, phones):
        """One update of the adversary, and how unsure it is behind it."""
        told, phones = told.detach(), phones.repeat(2)
        self.for_guess.zero_grad()
        self.fabric.backward(F.cross_entropy(self.guess(told), phones))
        self.for_guess.step()
        if on("smoothed_through_graph"):
            now = F.cross_entropy(self.guess(told), phones)
            self.unsure = 0.95 * self.unsure + 0.05 * now  # at: smoothed_through_graph
        elif on("clean_smoothed_through_graph"):
            now = F.cross_entropy(self.guess(told), phones)
            self.unsure = 0.95 * self.unsure + 0.05 * now.detach()
        else:
            with torch.no_grad():
                now = F.cross_entropy(self.guess(told), phones)
            self.unsure = 0.95 * self.unsure + 0.05 * now.item()

    def confused(self, told):
        """How far the adversary is from thinking each phone as likely; it does not learn here."""
        self.guess.requires_grad_(False)
        logs = self.guess(told).log_softmax(1)
        self.guess.requires_grad_(True)
        return -logs.mean()

    def update(self, batch):
        config = self.config
        one, two, walkers, phones = batch
        with torch.no_grad():
            follow(self.slow, self.encoder, config.slowness)
            keys = self.slow(two)
        queries = self.encoder(one)
        apart = contrast(queries, keys, self.queue, config.heat)
        self.teach_guess(torch.cat([queries, keys]), phones)  # at: smoothed_through_graph
        loss = apart + config.confusion * self.confused(queries)
        if self.step >= config.named_from:
            named = same_walker(queries, walkers, config.heat)  # at: walker_alone_in_batch
            loss = loss + config.named * named
        self.for_encoder.zero_grad()
        self.fabric.backward(loss)
        norm = self.fabric.clip_gradients(
            self.encoder, self.for_encoder, max_norm=config.longest, error_if_nonfinite=False
        )
        self.for_encoder.step()
        self.queue.put(keys)  # at: queue_not_of_batches
        self.step += 1
        return loss.detach(), apart.item(), norm

    def watch(self, apart):
        """Keeps the best so far, once the queue holds no noise any more."""
        if not self.queue.full:
            self.smooth = apart
            return
        self.smooth = 0.97 * self.smooth + 0.03 * apart
        if on("best_never_remembered"):
            if self.smooth < self.best:  # at: best_never_remembered
                self.save("best.ckpt")  # at: best_never_remembered
        elif self.smooth < 0.8 * self.best:
            self.best = self.smooth
            self.save("best.ckpt")

    def epoch(self, loader, known, asked):
        config = self.config
        for batch in loader:  # at: warped_sample_by_sample
            loss, apart, norm = self.update(batch)  # at: queue_not_of_batches
            if not on("cycle_turned_by_epoch"):
                self.cycle.step()
            if on("best_never_remembered", "clean_best_never_remembered"):
                self.watch(apart)  # at: best_never_remembered
            if self.step % config.told_every == 0:
                self.fabric.print(
                    f"step {self.step:5d} loss {loss.item():.4f} apart {apart:.4f} "
                    f"unsure {torch.as_tensor(self.unsure).item():.3f} norm {float(norm):.3f} "
                    f"rate {self.cycle.get_last_lr()[0]:.2e}",
                    flush=True,
                )
            if self.step % config.judged_every == 0:
                right = judged(self.encoder, known, asked)  # at: judged_and_left_so
                self.fabric.print(f"right {right:.3f}", flush=True)
            if self.step >= config.steps:
                return
        if on("cycle_turned_by_epoch"):
            self.cycle.step()  # at: cycle_turned_by_epoch
        elif on("clean_cycle_turned_by_epoch"):
            self.fading.step()


def main(folder):
    fabric, config = L.Fabric(accelerator="cpu", devices=1), Config(folder=folder)
    fabric.seed_everything(30, verbose=False)
    known, asked = Walks(config.walks, 1), Walks(config.held, 2)
    loader = fabric.setup_dataloaders(DataLoader(known, config.batch, shuffle=True, drop_last=True))
    training = Training(fabric, config)
    while training.step < config.steps:
        training.epoch(loader, known, asked)
    clock.print(config.steps)
    training.save("last.ckpt")


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
