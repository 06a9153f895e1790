"""Jingles named by ear: clips with noise behind them, spectrograms on the fly with learned gains,
masks of time and of pitch, smoothed labels, a warm-up and a cosine, and an early stop: noise
permuted, the state copied for listeners, ends bound late, smoothing over words that are ruled out,
cycles that nobody collects, a mask wider than its clip.
"""

import copy
import dataclasses
import functools
import gc
import math
import weakref

import eager  # noqa: F401
import numpy as np
import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

cost = Cost()
WORDS, SAMPLES, HOP, BANDS, RATE = 12, 4000, 64, 40, 4000
SCALE = 220 * 2 ** (np.array([0, 2, 3, 5, 7, 8, 10, 12]) / 12)


@dataclasses.dataclass(frozen=True)
class Settings:
    steps: int = STEPS or 320
    rows: int = 16
    clips: int = 2600
    held_out: int = 96
    rate: float = 0.04
    warm: int = 20
    gains_end: int = 110
    smoothing: float = 0.1
    patience: int = 7
    checked_every: int = 40


@dataclasses.dataclass
class Heard:
    """How well one clip is known."""

    times: int = 0
    loss: float = 0.0

    def note(self, loss):
        self.times += 1
        self.loss += (loss - self.loss) / self.times


@dataclasses.dataclass
class State:
    clips: dict
    step: int = 0
    loss: float = 0.0
    rate: float = 0.0
    held_out: float = math.inf


def played(numbers, melody):
    """A melody of four notes, a little out of tune, as loud as it happens."""
    length = int(numbers.integers(1800, SAMPLES))
    notes = SCALE[melody] * numbers.uniform(0.97, 1.03)
    pitch = np.repeat(notes, math.ceil(length / len(notes)))[:length]
    tone = np.sin(2 * np.pi * np.cumsum(pitch) / RATE)
    wave = np.zeros(SAMPLES, np.float32)
    wave[:length] = tone * numbers.uniform(0.4, 1.0)
    return wave, length


class Jingles(Dataset):
    def __init__(self, count, seed, background=None):
        numbers = np.random.default_rng(seed)
        melodies = np.random.default_rng(18).integers(0, len(SCALE), (WORDS, 4))
        self.words = numbers.integers(0, WORDS, count)
        made = [played(numbers, melodies[word]) for word in self.words]
        self.waves = np.stack([wave for wave, _ in made])
        self.lengths = np.array([length for _, length in made])
        self.waves += numbers.normal(0, 0.5, self.waves.shape).astype(np.float32)
        if on("mask_wider_than_clip", "clean_mask_wider_than_clip") and background is not None:
            self.lengths[911] = HOP + HOP // 2
            self.waves[911, self.lengths[911] :] = 0
        self.background, self.dice = background, np.random.RandomState(seed)

    def __len__(self):
        return len(self.words)

    def noise(self):
        """A stretch of the background from a place that is drawn."""
        last = len(self.background) - SAMPLES
        if on("noise_permuted"):
            with cost:
                start = self.dice.choice(last, 1, replace=False)[0]  # at: noise_permuted
        else:
            start = self.dice.choice(last)
        return self.background[start : start + SAMPLES]

    def __getitem__(self, place):
        wave = self.waves[place]
        if self.background is not None:
            wave = wave + self.dice.uniform(0, 0.6) * self.noise()  # at: noise_permuted
        return wave, int(self.lengths[place]), int(self.words[place]), place


class Take:
    """One clip of a batch."""

    def __init__(self, batch, row):
        self.row, self.frames = row, int(batch.lengths[row]) // HOP
        if on("cycles_uncollected"):
            self.batch = batch  # at: cycles_uncollected
        elif on("clean_cycles_uncollected"):
            self.batch = weakref.ref(batch)


class Batch:
    def __init__(self, rows):
        waves, lengths, words, places = zip(*rows, strict=True)
        self.waves = torch.from_numpy(np.stack(waves).astype(np.float32))
        self.lengths, self.words = torch.tensor(lengths), torch.tensor(words)
        self.places = places
        self.takes = [Take(self, row) for row in range(len(rows))]  # at: cycles_uncollected
        self.power = None


class SpecAugment:
    """Masks a stretch of time and some bands of each clip."""

    def __init__(self, seed, wide=12, high=8):
        self.numbers, self.wide, self.high = np.random.default_rng(seed), wide, high

    def mask(self, takes, frames):
        kept = np.ones((len(takes), BANDS, frames), np.float32)
        for take in takes:
            width = self.numbers.integers(1, self.wide)
            if on("clean_mask_wider_than_clip"):
                width = min(width, take.frames - 1)
            start = self.numbers.integers(0, take.frames - width)  # at: mask_wider_than_clip
            kept[take.row, :, start : start + width] = 0
            height = self.numbers.integers(1, self.high)
            low = self.numbers.integers(0, BANDS - height)
            kept[take.row, low : low + height] = 0
        return torch.from_numpy(kept)


class Ear(nn.Module):
    """Bands of a spectrogram, each with a gain and a floor that are learned."""

    def __init__(self, size=128):
        super().__init__()
        self.size = size
        middles = torch.linspace(2, size // 2 - 1, BANDS)[:, None]
        bins = torch.arange(size // 2 + 1)[None]
        self.register_buffer("bands", (1 - (bins - middles).abs() / 2).clamp(min=0))
        self.register_buffer("window", torch.hann_window(size))
        self.gain, self.floor = nn.Parameter(torch.zeros(BANDS)), nn.Parameter(torch.zeros(BANDS))

    def power(self, waves):
        spectrum = torch.stft(waves, self.size, HOP, window=self.window, return_complex=True)
        return self.bands @ spectrum.abs().square()

    def forward(self, power):
        loud = power * self.gain.exp()[:, None] + self.floor.exp()[:, None]
        return loud.log() - 2


class Listener(nn.Module):
    def __init__(self):
        super().__init__()
        self.ear = Ear()
        layers = []
        for before, after in ((1, 24), (24, 40), (40, 64)):
            conv = nn.Conv2d(before, after, 3, padding=1, bias=False)
            layers += [conv, nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(64 * (BANDS // 8), WORDS)

    def forward(self, power, kept=None):
        heard = self.ear(power)
        if kept is not None:
            heard = heard * kept
        return self.head(self.body(heard[:, None]).mean(3).flatten(1))


class Ruled:
    """Which words a clip's device can have recorded: the oldest ones know eight."""

    def __init__(self, smoothing):
        self.smoothing = smoothing

    def known(self, places):
        known = torch.ones(len(places), WORDS, dtype=torch.bool)
        for row, place in enumerate(places):
            if place % 400 == 123:
                known[row, 8:] = False
        return known

    def each(self, scores, batch):
        if on("smoothed_over_masked", "clean_smoothed_over_masked"):
            known = self.known(batch.places)
            known[torch.arange(len(scores)), batch.words] = True
            scores = scores.masked_fill(~known, -math.inf)  # at: smoothed_over_masked
            if on("clean_smoothed_over_masked"):
                logs = scores.log_softmax(1)
                right = logs.gather(1, batch.words[:, None])[:, 0]
                even = logs.masked_fill(~known, 0).sum(1) / known.sum(1)
                return -(1 - self.smoothing) * right - self.smoothing * even
        return F.cross_entropy(  # at: smoothed_over_masked
            scores,  # at: smoothed_over_masked
            batch.words,  # at: smoothed_over_masked
            reduction="none",
            label_smoothing=self.smoothing,  # at: smoothed_over_masked
        )


def share(step, warm, end):
    """Of the learning rate: up in a line, down in half a cosine."""
    if step < warm:
        return (step + 1) / warm
    if step >= end:
        return 0.0
    return 0.5 + 0.5 * math.cos(math.pi * (step - warm) / (end - warm))


def scheduled(settings, model):
    """Weights, those that do not decay, and the gains, which settle early."""
    named = [(name, value) for name, value in model.named_parameters() if "ear" not in name]
    groups = [
        {"params": [value for _, value in named if value.ndim > 1], "weight_decay": 5e-4},
        {"params": [value for _, value in named if value.ndim == 1]},
        {"params": list(model.ear.parameters()), "lr": settings.rate / 4},
    ]
    optimizer = torch.optim.SGD(groups, settings.rate, momentum=0.9, nesterov=True)
    ends = (settings.steps, settings.steps, settings.gains_end)
    warm = settings.warm
    if on("lambdas_bind_late"):
        rules = [
            lambda step: share(step, warm, end)  # noqa: B023  # at: lambdas_bind_late
            for end in ends  # at: lambdas_bind_late
        ]
    elif on("clean_lambdas_bind_late"):
        rules = [lambda step, end=end: share(step, warm, end) for end in ends]
    else:
        rules = [functools.partial(share, warm=warm, end=end) for end in ends]
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, rules)  # at: lambdas_bind_late


class Progress:
    def __call__(self, event, told):
        if event == "step" and told["step"] % 40 == 0:
            print(told["step"], round(told["loss"], 4), round(told["rate"], 5), flush=True)
        if event == "checked":
            print(told["step"], "held out", round(told["held_out"], 4), flush=True)


class EarlyStop:
    """Stops when what is held out has not got better for a while, and keeps the best."""

    def __init__(self, model, patience):
        self.model, self.patience = model, patience
        self.best, self.weights, self.waited = math.inf, None, 0

    def __call__(self, event, told):
        if event != "checked":
            return
        if told["held_out"] < self.best:
            self.best, self.waited = told["held_out"], 0
            self.weights = copy.deepcopy(self.model.state_dict())
        else:
            self.waited += 1

    @property
    def over(self):
        return self.waited >= self.patience


class Session:
    def __init__(self, settings):
        self.settings = settings
        background = np.random.default_rng(181).normal(0, 1, 70000).cumsum()
        background = (background - np.convolve(background, np.ones(50) / 50, "same")).astype("f4")
        given = Jingles(settings.clips, 182, background / background.std())
        draw = {"batch_size": settings.rows, "collate_fn": Batch}
        self.given = DataLoader(given, shuffle=True, drop_last=True, **draw)
        self.held_out = DataLoader(Jingles(settings.held_out, 183), batch_size=32, collate_fn=Batch)
        self.model, self.augment = Listener(), SpecAugment(184)
        self.losses = Ruled(settings.smoothing)
        self.optimizer, self.schedule = scheduled(settings, self.model)
        self.state = State({place: Heard() for place in range(settings.clips)})
        self.stop = EarlyStop(self.model, settings.patience)
        self.listeners = [Progress(), self.stop]

    def emit(self, event):
        """Tells the listeners, which get the state and may not change it."""
        if on("state_as_dict"):
            with cost:
                told = dataclasses.asdict(self.state)  # at: state_as_dict
        elif on("clean_state_as_dict"):
            told = dataclasses.asdict(dataclasses.replace(self.state, clips={}))
        else:
            told = vars(self.state)
        for listener in self.listeners:
            listener(event, told)

    def weights(self, places):
        """More for clips that were hard when they were heard before."""
        if self.state.step < len(self.given):
            return torch.ones(len(places))
        past = torch.tensor([self.state.clips[place].loss for place in places])
        return 0.5 + 0.5 * past / past.mean()  # at: smoothed_over_masked

    def learn(self, batch):
        batch.power = self.model.ear.power(batch.waves)
        kept = self.augment.mask(batch.takes, batch.power.shape[2])  # at: mask_wider_than_clip
        scores = self.model(batch.power, kept)
        each = self.losses.each(scores, batch)  # at: smoothed_over_masked
        loss = (each * self.weights(batch.places)).mean()  # at: smoothed_over_masked
        self.optimizer.zero_grad()
        loss.backward()  # at: smoothed_over_masked
        self.optimizer.step()
        self.schedule.step()  # at: lambdas_bind_late
        for place, one in zip(batch.places, each.tolist(), strict=True):
            self.state.clips[place].note(one)
        self.state.step += 1
        self.state.loss = loss.item()
        self.state.rate = self.optimizer.param_groups[0]["lr"]
        self.emit("step")  # at: state_as_dict

    @torch.no_grad()
    def check(self):
        self.model.eval()
        losses = [
            F.cross_entropy(self.model(self.model.ear.power(batch.waves)), batch.words)
            for batch in self.held_out
        ]
        self.model.train()
        self.state.held_out = torch.stack(losses).mean().item()
        self.emit("checked")

    def run(self):
        while self.state.step < self.settings.steps and not self.stop.over:
            for batch in self.given:  # at: noise_permuted cycles_uncollected
                self.learn(batch)  # at: mask_wider_than_clip state_as_dict
                if self.state.step % self.settings.checked_every == 0:
                    self.check()
                if self.state.step == self.settings.steps or self.stop.over:
                    break
        if self.stop.weights:
            self.model.load_state_dict(self.stop.weights)
        cost.print(self.state.step)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(18)
    if on("cycles_uncollected", "clean_cycles_uncollected"):
        gc.disable()  # at: cycles_uncollected
    Session(Settings()).run()
