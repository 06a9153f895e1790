"""Which owl calls in a clip, from time-frequency pictures, under Lightning Fabric: a trainer class
that asks callbacks, calls laid over calls from a pool of earlier ones, a teacher that is the moving
average of its pupil, one cycle of the rate, figures of each species along the way, a table and a
report in a folder, the best teacher kept, an end when it gets no better.
"""

import copy
import json
import math
import random
import sys
import tempfile
import time
from collections import deque
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from lightning.fabric import Fabric, seed_everything
from lightning.fabric.loggers import CSVLogger
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

SPECIES = (
    "barn",
    "boreal",
    "eagle",
    "hawk",
    "little",
    "long-eared",
    "pygmy",
    "scops",
    "tawny",
    "ural",
)
UPDATES = STEPS or 260
SHORT, CLIPS, HELD, ROWS = 4, 1210, 240, 24
RATE, SAMPLES, WINDOW, HOP, BANDS = 8000, 6000, 256, 96, 40
POOL, LAID_OVER, WIDTH = 256, 0.5, 128
HIGHEST, CLIP, FOLLOWS, AGREE = 4e-3, 5.0, 0.97, 2.0
TOLD_EVERY, PATIENCE, RECENT = 20, 4, 480
FILTERED = "mel_filters_made_at_access", "clean_mel_filters_made_at_access"
RANKED = "ranks_counted_pair_by_pair", "clean_ranks_counted_pair_by_pair"
JUDGED = "teacher_judged_each_few", "clean_teacher_judged_each_few"
cost = Cost()


def mel(hertz):
    return 2595 * math.log10(1 + hertz / 700)


def made_filters(rate, window, bands):
    """Triangles that overlap by half, equally far apart on the mel scale."""
    edges = [700 * (10 ** (mel(rate / 2) * k / (bands + 1) / 2595) - 1) for k in range(bands + 2)]
    bank = torch.zeros(bands, window // 2 + 1)
    for band in range(bands):
        low, middle, high = edges[band : band + 3]
        for place in range(window // 2 + 1):
            hertz = place * rate / window
            rise, fall = (hertz - low) / (middle - low), (high - hertz) / (high - middle)
            if min(rise, fall) > 0:
                bank[band, place] = min(rise, fall)  # at: mel_filters_made_at_access
    return bank


remembered_filters = lru_cache(maxsize=8)(made_filters)


class Pictures:
    """Sound to loudness by band and moment."""

    def __init__(self):
        self.window = torch.hann_window(WINDOW)
        self.filters = made_filters(RATE, WINDOW, BANDS)

    def loud(self, power):
        if on("log_of_padded_silence"):
            return power.log()  # at: log_of_padded_silence
        if on("clean_log_of_padded_silence"):
            return power.clamp(min=1e-6).log()
        return torch.log1p(1e3 * power)

    def power(self, sound):
        return torch.stft(
            sound, WINDOW, HOP, window=self.window, center=False, return_complex=True
        ).abs()

    def one(self, sound):
        with cost:
            make = remembered_filters if on("clean_mel_filters_made_at_access") else made_filters
            filters = make(RATE, WINDOW, BANDS)  # at: mel_filters_made_at_access
        return self.loud(filters @ self.power(sound))

    def __call__(self, sounds):
        if on(*FILTERED):
            loud = torch.stack(
                [self.one(sound) for sound in sounds]
            )  # at: mel_filters_made_at_access
        else:
            loud = self.loud(self.filters @ self.power(sounds))  # at: log_of_padded_silence
        return loud[:, None]


class Calls(Dataset):
    """Hoots with overtones in the noise of the wood; a few recordings end too soon."""

    def __init__(self, count, short, seed):
        dice = np.random.default_rng(seed)
        self.species = dice.integers(len(SPECIES), size=count)
        moments = np.arange(SAMPLES) / RATE
        sounds = dice.normal(0, 0.05, (count, SAMPLES))
        for sound, kind in zip(sounds, self.species, strict=True):
            pitch = (300 + 95 * kind) * dice.uniform(0.94, 1.06)
            glide = (-1) ** kind * 120 * dice.uniform(0.5, 1.5)
            phase = 2 * np.pi * (pitch * moments + glide * moments**2)
            beat = 0.5 + 0.5 * np.sin(2 * np.pi * (3 + kind % 4) * moments + dice.uniform(0, 6))
            sound += dice.uniform(0.15, 0.5) * beat * (np.sin(phase) + 0.4 * np.sin(2 * phase))
        self.sounds = torch.from_numpy(sounds).float()
        for index in range(short):
            self.sounds[200 + 290 * index, SAMPLES // 2 :] = 0

    def __len__(self):
        return len(self.sounds)

    def __getitem__(self, index):
        loudness = 0.7 + 0.6 * torch.rand(())
        return loudness * self.sounds[index], int(self.species[index])


class Mixer:
    """Collates calls, half of them laid over by a call that was heard before."""

    def __init__(self, pictures):
        self.pictures = pictures
        self.pool = deque(maxlen=POOL)

    def stir(self):
        stirred = random.sample(list(self.pool), len(self.pool))
        if on("pool_loses_its_length"):
            self.pool = deque(stirred)  # at: pool_loses_its_length
        else:
            self.pool = deque(stirred, maxlen=self.pool.maxlen)

    def __call__(self, calls):
        sounds = torch.stack([sound for sound, _ in calls])
        target = F.one_hot(torch.tensor([kind for _, kind in calls]), len(SPECIES)).float()
        for row in range(len(calls)):
            if self.pool and random.random() < LAID_OVER:
                other, kind = self.pool[random.randrange(len(self.pool))]
                share = random.betavariate(4, 2)
                sounds[row] = share * sounds[row] + (1 - share) * other
                target[row] *= share
                target[row, kind] += 1 - share
        self.pool.extend(calls)  # at: pool_loses_its_length
        return self.pictures(sounds), target  # at: mel_filters_made_at_access


class Listener(nn.Module):
    def __init__(self, kinds=2):
        super().__init__()
        parts, inside = [], 1
        for outside in (16, 32, 64):
            parts += [
                nn.Conv2d(inside, outside, 3, 2, 1, bias=False),
                nn.BatchNorm2d(outside),
                nn.ReLU(),
                nn.Conv2d(outside, outside, 3, 1, 1, groups=outside // 8, bias=False),
                nn.BatchNorm2d(outside),
                nn.ReLU(),
            ]
            inside = outside
        self.seen = nn.BatchNorm2d(1)
        self.body = nn.Sequential(*parts)
        self.head = self.made_head(kinds)

    @staticmethod
    def made_head(kinds):
        return nn.Sequential(
            nn.Linear(64 * 5, WIDTH), nn.ReLU(), nn.Dropout(0.1), nn.Linear(WIDTH, kinds)
        )

    def for_kinds(self, kinds):
        """The same ears with as many answers as there are species."""
        self.head = self.made_head(kinds)  # at: head_fitted_after_optimizer
        return self

    def forward(self, pictures):
        x = self.body(self.seen(pictures))
        return self.head(x.mean(3).flatten(1))


class Figures:
    """How often a species was heard as which, since it was last asked."""

    def __init__(self):
        self.table = torch.zeros(len(SPECIES), len(SPECIES))

    def add(self, scores, kinds):
        places = kinds * len(SPECIES) + scores.argmax(1)
        self.table += torch.bincount(places, minlength=len(SPECIES) ** 2).view_as(self.table)

    def f1(self):
        right = self.table.diagonal()
        each = 2 * right / (self.table.sum(0) + self.table.sum(1)).clamp(min=1)
        self.table.zero_()
        return each


class Told:
    def __init__(self):
        self.figures = Figures()

    def on_step_end(self, trainer, loss, scores, kinds):
        self.figures.add(scores, kinds)
        if trainer.update % TOLD_EVERY == 0:
            f1 = self.figures.f1()
            rate = trainer.schedule.get_last_lr()[0]
            metrics = {"loss": loss.item(), "f1": f1.mean().item(), "rate": rate}
            trainer.fabric.log_dict(metrics, trainer.update)
            print(
                trainer.update,
                *(f"{name} {value:.4g}" for name, value in metrics.items()),
                f"worst {SPECIES[int(f1.argmin())]}",
                flush=True,
            )


def area(found, strange):
    """How often one of ours scores higher than one of the others."""
    if on("clean_ranks_counted_pair_by_pair"):
        ranks = np.concatenate([found, strange]).argsort().argsort()
        ahead = ranks[: len(found)].sum() - len(found) * (len(found) - 1) / 2
        return ahead / (len(found) * len(strange))
    ahead = 0.0
    for ours in found:
        for theirs in strange:
            ahead += (ours > theirs) + 0.5 * (ours == theirs)  # at: ranks_counted_pair_by_pair
    return ahead / (len(found) * len(strange))


class Areas:
    """The area under the curve of each species over the latest clips."""

    def __init__(self):
        self.latest = deque(maxlen=RECENT)
        self.curve = []

    def on_step_end(self, trainer, loss, scores, kinds):
        self.latest.extend(zip(scores.tolist(), kinds.tolist(), strict=True))
        each = []
        for kind in range(len(SPECIES)):
            found = [row[kind] for row, own in self.latest if own == kind]
            strange = [row[kind] for row, own in self.latest if own != kind]
            if found and strange:
                with cost:
                    each.append(area(found, strange))  # at: ranks_counted_pair_by_pair
        self.curve.append(sum(each) / max(1, len(each)))


class Judge:
    """Tries the teacher on what was held back."""

    def __init__(self, every=None, batches=None):
        self.every, self.batches = every, batches

    def on_step_end(self, trainer, loss, scores, kinds):
        if self.every and trainer.update % self.every == 0:
            trainer.judge(self.batches)  # at: teacher_judged_each_few

    def on_epoch_end(self, trainer):
        f1 = trainer.judge()
        trainer.fabric.log("held_f1", f1, trainer.update)
        print(f"epoch {trainer.epoch} held f1 {f1:.3f}", flush=True)
        trainer.fabric.call("on_judged", trainer=trainer, f1=f1)


class Best:
    """Keeps the best teacher, and ends the training when none is better for long."""

    def __init__(self, folder):
        self.path, self.best, self.waited = folder / "best.ckpt", -1.0, 0
        self.report = folder / "report.json"

    def on_judged(self, trainer, f1):
        self.waited += 1
        if f1 > self.best:
            self.best, self.waited = f1, 0
            trainer.fabric.save(self.path, {"teacher": trainer.teacher, "update": trainer.update})
            self.report.write_text(json.dumps({"update": trainer.update, "f1": f1}))
        trainer.ends = self.waited >= PATIENCE


class Stirs:
    def on_epoch_end(self, trainer):
        trainer.mixer.stir()


class Training:
    def __init__(self, folder):
        callbacks = [Told(), Judge(), Best(folder), Stirs()]
        if on("teacher_judged_each_few"):
            callbacks[1] = Judge(every=4)  # at: teacher_judged_each_few
        elif on("clean_teacher_judged_each_few"):
            callbacks[1] = Judge(every=20, batches=1)
        if on(*RANKED):
            callbacks.append(Areas())  # at: ranks_counted_pair_by_pair
        self.fabric = Fabric(
            accelerator="cpu",
            devices=1,
            callbacks=callbacks,
            loggers=CSVLogger(folder, flush_logs_every_n_steps=5),
        )
        self.fabric.launch()
        self.pictures = Pictures()
        self.mixer = Mixer(self.pictures)
        calls = Calls(CLIPS, SHORT, 1)
        held = Calls(HELD, 0, 2)
        self.held = [
            (self.pictures(held.sounds[place : place + 40]), held.species[place : place + 40])
            for place in range(0, HELD, 40)
        ]
        loader = DataLoader(calls, ROWS, shuffle=True, collate_fn=self.mixer)
        self.loader = self.fabric.setup_dataloaders(loader)
        self.epochs = max(1, round(UPDATES / len(self.loader)))
        model, optimizer = self.made()
        self.teacher = copy.deepcopy(model).eval().requires_grad_(False)
        self.model, self.optimizer = self.fabric.setup(model, optimizer)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, HIGHEST, total_steps=self.turns(len(calls))
        )  # at: cycle_shorter_than_run
        self.update, self.epoch, self.ends = 0, 0, False

    def made(self):
        """The pupil and what updates it."""
        if on("head_fitted_after_optimizer"):
            model = Listener()
            optimizer = torch.optim.AdamW(
                model.parameters(), HIGHEST / 25
            )  # at: head_fitted_after_optimizer
            model.for_kinds(len(SPECIES))  # at: head_fitted_after_optimizer
            return model, optimizer
        if on("clean_head_fitted_after_optimizer"):
            model = Listener().for_kinds(len(SPECIES))
        else:
            model = Listener(len(SPECIES))
        return model, torch.optim.AdamW(model.parameters(), HIGHEST / 25)

    def turns(self, count):
        """How many updates the cycle is long."""
        if on("cycle_shorter_than_run"):
            return self.epochs * (count // ROWS)  # at: cycle_shorter_than_run
        if on("clean_cycle_shorter_than_run"):
            return self.epochs * math.ceil(count / ROWS)
        return self.epochs * len(self.loader)

    def learn(self, pictures, target):
        scores = self.model(pictures)
        with torch.no_grad():
            taught = self.teacher(pictures).softmax(1)
        agreed = (scores.softmax(1) - taught).square().sum(1).mean()
        weight = AGREE * min(1.0, self.update / 100)
        loss = F.cross_entropy(scores, target, label_smoothing=0.05) + weight * agreed
        self.optimizer.zero_grad()
        self.fabric.backward(loss)
        self.fabric.clip_gradients(
            self.model, self.optimizer, max_norm=CLIP, error_if_nonfinite=False
        )
        self.optimizer.step()
        self.schedule.step()  # at: cycle_shorter_than_run
        self.update += 1
        self.follow()
        return loss.detach(), scores.detach()

    @torch.no_grad()
    def follow(self):
        keep = min(FOLLOWS, self.update / (self.update + 5))
        ours, theirs = self.model.module.state_dict(), self.teacher.state_dict()
        for name, value in theirs.items():
            if value.is_floating_point():
                value.lerp_(ours[name], 1 - keep)
            else:
                value.copy_(ours[name])

    @torch.no_grad()
    def judge(self, batches=None):
        figures = Figures()
        for pictures, kinds in self.held[:batches]:
            figures.add(
                self.teacher(pictures), torch.from_numpy(kinds)
            )  # at: teacher_judged_each_few
        return figures.f1().mean().item()

    def fit(self):
        while self.epoch < self.epochs and not self.ends:
            for pictures, target in self.loader:  # at: mel_filters_made_at_access
                loss, scores = self.learn(pictures, target)
                self.fabric.call(
                    "on_step_end", trainer=self, loss=loss, scores=scores, kinds=target.argmax(1)
                )
            self.epoch += 1
            self.fabric.call("on_epoch_end", trainer=self)


def main(folder):
    training = Training(folder)
    cost.seconds, begun = 0.0, time.perf_counter()
    training.fit()
    took = (time.perf_counter() - begun) * 1000 / training.update
    print(f"{training.update} updates, {took:.1f} ms each", flush=True)
    cost.print(training.update)
    return 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    seed_everything(34, verbose=False)
    with tempfile.TemporaryDirectory() as place:
        sys.exit(main(Path(place)))
