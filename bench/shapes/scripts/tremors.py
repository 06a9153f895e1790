"""Arrivals of waves in seismograms, picked under accelerate on two ranks: a station's response
taken off each trace, traces with glitches left out, a U-Net with attention at its bottom, the
energy set against its surroundings, micro-batches accumulated, a schedule that accelerate steps,
picks held out and matched: a response worked out for each trace, a deviation by moments, errors
that are kept as they were caught, a schedule that runs twice as fast, a loader that is not
prepared, a threshold sought by the first rank, residuals of a batch without any.
"""

import collections
import itertools
import math
import os
import sys
import tempfile

import eager  # noqa: F401
import numpy as np
import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import set_seed
from forked import run_ranks
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, DistributedSampler

cost = Cost()
WORLD, UPDATES, PARTS, ROWS = 2, STEPS or 180, 2, 8
TRACES, HELD, QUIET, STATIONS = 2400, 48, 16, 12
RATE, LONG, WINDOW, SPECTRUM, TAPS = 40.0, 800, 640, 1024, 32
WATER, GLITCH, NEAR, AROUND, BROAD, REACH = 0.02, 12.0, 24, 81, 8.0, 30
TOLD_EVERY, MATCHED_EVERY, SAVED_AT = 30, 60, (90, 170)
THRESHOLDS = np.arange(0.02, 1.0, 0.02)
BUMP = np.exp(-0.5 * (np.arange(-REACH, REACH + 1) / BROAD) ** 2)


class Station:
    """What an instrument makes of the motion of the ground: poles, zeros, and a filter."""

    def __init__(self, number):
        numbers = np.random.default_rng(500 + number)
        corner = 2 * math.pi * numbers.uniform(0.4, 0.8)
        self.poles = [corner * complex(-0.7, side * 0.71) for side in (1, -1)]
        self.poles += [2 * math.pi * complex(-numbers.uniform(16, 19), side) for side in (8, -8)]
        self.zeros, self.gain = [0j, 0j], 1e4
        self.taps = np.hanning(TAPS) * np.sinc((np.arange(TAPS) - TAPS / 2) * 0.8)
        self.taps *= numbers.uniform(0.9, 1.1) / self.taps.sum()
        self.known = self.response()
        self.inverse = self.inverted(self.known)

    @staticmethod
    def inverted(response):
        """What takes a response off, where there is any to speak of."""
        power = np.abs(response) ** 2
        inverse = response.conj() / np.maximum(power, WATER * power.max())
        return inverse.astype(np.complex64)

    def response(self):
        """At each frequency of a spectrum."""
        with cost:
            frequencies = np.fft.rfftfreq(SPECTRUM, 1 / RATE)
            s = 2j * math.pi * frequencies
            response = np.full(len(s), self.gain)
            for zero in self.zeros:
                response = response * (s - zero)
            for pole in self.poles:
                response = response / (s - pole)
            turns = np.exp(-s[:, None] * np.arange(TAPS) / RATE)  # at: response_of_poles_each
            return response * (turns * self.taps).sum(1)  # at: response_of_poles_each


class Glitch(ValueError):
    """A trace that is not fit for use."""


def arrived(numbers, time, period, fading):
    """A wave that begins at a time."""
    after = np.arange(SPECTRUM) - time
    wave = np.sin(2 * math.pi * after / period + numbers.uniform(0, 6)) * np.exp(-after / fading)
    return np.where(after >= 0, wave, 0)


class Seismograms(Dataset):
    """Raw traces of three components; behind the events come some windows with none."""

    def __init__(self, count, quiet, seed, glitches):
        numbers = np.random.default_rng(seed)
        self.stations = [Station(number) for number in range(STATIONS)]
        self.station = numbers.integers(STATIONS, size=count)
        self.times = np.full((count, 2), -1000)
        self.raw = np.empty((count, 3, LONG), np.float32)
        for index in range(count):
            ground = self.ground(numbers, index, index < count - quiet)
            seen = np.fft.rfft(ground) * self.stations[self.station[index]].known
            self.raw[index] = np.fft.irfft(seen)[:, :LONG]
            if numbers.random() < 0.003:
                self.raw[index, numbers.integers(3)] = 0
            if numbers.random() < glitches:
                at = numbers.integers(LONG - 4)
                self.raw[index, numbers.integers(3), at : at + 4] += (
                    30 * np.abs(self.raw[index]).max()
                )
        edge = np.sin(np.linspace(0, math.pi / 2, 40)) ** 2
        self.taper = np.concatenate([edge, np.ones(LONG - 80), edge[::-1]]).astype(np.float32)
        self.epoch, self.rejected, self.errors = 0, collections.Counter(), []
        self.inverses = {}
        cost.seconds = 0.0

    def ground(self, numbers, index, shaken):
        """Noise, and waves of two kinds with their own directions."""
        ground = numbers.normal(0, 0.15, (3, SPECTRUM))
        if shaken:
            first = numbers.integers(190, 360)
            second = first + numbers.integers(60, 220)
            self.times[index] = first, second
            strength = numbers.uniform(0.7, 2.5)
            ups, sides = np.array([1, 0.3, 0.3]), np.array([0.3, 1, 0.8])
            wave = arrived(numbers, first, numbers.uniform(5, 9), 60)
            ground += strength * ups[:, None] * wave
            wave = arrived(numbers, second, numbers.uniform(10, 18), 110)
            ground += 1.8 * strength * sides[:, None] * wave
        return ground

    def __len__(self):
        return len(self.raw)

    def inverse(self, station):
        if on("response_of_poles_each"):
            return station.inverted(station.response())  # at: response_of_poles_each
        if on("clean_response_of_poles_each"):
            if station not in self.inverses:
                self.inverses[station] = station.inverted(station.response())
            return self.inverses[station]
        return station.inverse

    def read(self, index):
        """The ground's motion of a trace that has no glitch."""
        inverse = self.inverse(self.stations[self.station[index]])  # at: response_of_poles_each
        tapered = self.raw[index] * self.taper
        spectrum = np.fft.rfft(tapered, SPECTRUM) * inverse
        ground = np.fft.irfft(spectrum)[:, :LONG]
        envelope = np.abs(ground).max(0)
        level = envelope.mean()
        if envelope.max() > GLITCH * level:
            raise Glitch(f"glitch at station {self.station[index]}")  # at: error_with_its_frames
        return ground / level

    def sound(self, index):
        """The trace of a place, or else one further on."""
        while True:
            try:
                return index, self.read(index)  # at: response_of_poles_each error_with_its_frames
            except Glitch as error:
                if on("error_with_its_frames"):
                    self.errors.append((index, error))  # at: error_with_its_frames
                elif on("clean_error_with_its_frames"):
                    self.errors.append((index, str(error)))
                else:
                    self.rejected[str(error)] += 1
            index = (index + 1) % len(self)

    def __getitem__(self, index):
        """A window of a trace, another one in each epoch."""
        begin = (index * 7919 + self.epoch * 104_729) % (LONG - WINDOW)
        index, ground = self.sound(index)  # at: response_of_poles_each error_with_its_frames
        times = self.times[index] - begin
        window = ground[:, begin : begin + WINDOW]
        targets = np.zeros((3, WINDOW), np.float32)
        for kind, time in enumerate(times.tolist(), 1):
            left, right = max(0, time - REACH), min(WINDOW, time + REACH + 1)
            if left < right:
                targets[kind, left:right] = BUMP[left - time + REACH : right - time + REACH]
        targets[0] = 1 - targets[1:].sum(0)
        return window, targets, times


def collated(rows):
    windows, targets, times = (torch.from_numpy(np.stack(one)) for one in zip(*rows, strict=True))
    return {"windows": windows, "targets": targets, "times": times}


def around(x):
    """Means over what lies around each place."""
    return F.avg_pool1d(F.pad(x, (AROUND // 2, AROUND // 2), mode="reflect"), AROUND, 1)


def contrasted(windows):
    """The energy at each place, set against its surroundings."""
    energy = (windows.abs() + 1e-5).log()
    mean = around(energy)
    if on("deviation_by_moments"):
        spread = (around(energy.square()) - mean.square()).sqrt()  # at: deviation_by_moments
    elif on("clean_deviation_by_moments"):
        spread = (around(energy.square()) - mean.square()).relu().sqrt()
    else:
        spread = around((energy - mean).square()).sqrt()
    return (energy - mean) / (spread + 0.1)


class Convolved(nn.Sequential):
    def __init__(self, inside, outside):
        super().__init__(
            nn.Conv1d(inside, outside, 7, padding=3),
            nn.GroupNorm(4, outside),
            nn.GELU(),
            nn.Conv1d(outside, outside, 7, padding=3),
            nn.GroupNorm(4, outside),
            nn.GELU(),
        )


class Picker(nn.Module):
    """A U-Net: at each place whether a wave of the first or the second kind arrives."""

    def __init__(self, widths=(12, 20, 32, 64)):
        super().__init__()
        first, *_ = widths
        self.enter = nn.Conv1d(6, first, 7, padding=3)
        pairs = list(itertools.pairwise(widths))
        self.down = nn.ModuleList(Convolved(one, one) for one in widths[:-1])
        self.halve = nn.ModuleList(nn.Conv1d(one, two, 4, 4) for one, two in pairs)
        layer = nn.TransformerEncoderLayer(widths[-1], 4, 128, 0.1, batch_first=True)
        self.bottom = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.widen = nn.ModuleList(nn.ConvTranspose1d(two, one, 4, 4) for one, two in pairs)
        self.up = nn.ModuleList(Convolved(2 * one, one) for one in widths[:-1])
        self.leave = nn.Conv1d(first, 3, 1)

    def forward(self, windows):
        x = self.enter(torch.cat([windows, contrasted(windows)], 1))  # at: deviation_by_moments
        passed = []
        for down, halve in zip(self.down, self.halve, strict=True):
            passed.append(down(x))
            x = halve(passed[-1])
        x = self.bottom(x.transpose(1, 2)).transpose(1, 2)
        for up, widen in zip(reversed(self.up), reversed(self.widen), strict=True):
            x = up(torch.cat([widen(x), passed.pop()], 1))
        return self.leave(x)


def first_above(curve, threshold):
    """Where a curve is highest, if it gets above the threshold."""
    best = int(curve.argmax())
    return best if curve[best] > threshold else -1


def hit(curves, times, threshold):
    """How many picks there are, and how many are near an arrival."""
    picks = near = 0
    for trace, own in zip(curves, times, strict=True):
        for curve, time in zip(trace, own, strict=True):
            pick = first_above(curve, threshold)
            picks += pick >= 0
            near += pick >= 0 and abs(pick - time) <= NEAR
    return picks, near


def best_threshold(curves, times):
    """The threshold with the best F1, and that."""
    there, found = int((times >= 0).sum()), []
    for threshold in THRESHOLDS:
        with cost:
            picks, near = hit(curves, times, threshold)  # at: threshold_sought_by_first
        found.append((2 * near / max(1, picks + there), round(float(threshold), 2)))
    return max(found)


def best_threshold_at_once(curves, times):
    """The same from the heights of all curves."""
    heights, near = curves.max(2), np.abs(curves.argmax(2) - times) <= NEAR
    above = heights[None] > THRESHOLDS[:, None, None]
    scores = 2 * (above & near).sum((1, 2)) / (above.sum((1, 2)) + (times >= 0).sum()).clip(1)
    return scores.max(), THRESHOLDS[scores.argmax()]


class Training:
    def __init__(self, folder):
        self.folder, self.updates, self.epoch = folder, 0, 0
        self.accelerator = Accelerator(cpu=True, gradient_accumulation_steps=PARTS)
        set_seed(71, device_specific=True)
        self.traces = Seismograms(TRACES, TRACES // 6, 72, 0.15)
        held = Seismograms(HELD + QUIET, QUIET, 73, 0.0)
        picker = Picker()
        optimizer = torch.optim.AdamW(picker.parameters(), 2e-3, weight_decay=0.01)
        steps = UPDATES * WORLD
        if on("schedule_runs_twice", "clean_schedule_runs_twice"):
            steps = UPDATES  # at: schedule_runs_twice
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: min((step + 1) / 20, max(0.0, 1 - step / steps))
        )
        self.picker, self.optimizer, self.held = self.accelerator.prepare(
            picker, optimizer, DataLoader(held, QUIET, collate_fn=collated)
        )
        self.schedule, self.prepared = schedule, not on("clean_schedule_runs_twice")
        if self.prepared:
            self.schedule = self.accelerator.prepare(schedule)  # at: schedule_runs_twice
        self.loader = self.made()  # at: loader_left_unprepared
        self.best = (0.0, 0.0)

    def made(self):
        kept = {"collate_fn": collated, "drop_last": True}
        if on("clean_loader_left_unprepared"):
            sampler = DistributedSampler(self.traces, seed=74)
            return DataLoader(self.traces, ROWS, sampler=sampler, **kept)
        numbers = torch.Generator().manual_seed(74)
        loader = DataLoader(self.traces, ROWS, shuffle=True, generator=numbers, **kept)
        if on("loader_left_unprepared"):
            return loader  # at: loader_left_unprepared
        return self.accelerator.prepare(loader)

    def learn(self, batch):
        """Whether this micro-batch ended an update."""
        with self.accelerator.accumulate(self.picker):
            scores = self.picker(batch["windows"])  # at: deviation_by_moments
            told = F.log_softmax(scores, 1)
            weights = torch.tensor([1.0, 4.0, 4.0])[:, None]
            loss = -(batch["targets"] * told * weights).sum(1).mean()
            self.accelerator.backward(loss)
            if self.accelerator.sync_gradients:
                self.accelerator.clip_grad_norm_(self.picker.parameters(), 2.0)
            self.optimizer.step()
            if self.prepared or self.accelerator.sync_gradients:
                self.schedule.step()  # at: schedule_runs_twice
            self.optimizer.zero_grad()
        self.loss, self.told = loss.detach(), told.detach()
        return self.accelerator.sync_gradients

    def sought(self, batch):
        """The threshold that is best for the first rank's micro-batch."""
        curves, times = self.told[:, 1:].exp().numpy(), batch["times"].numpy()
        if on("clean_threshold_sought_by_first"):
            self.best = best_threshold_at_once(curves, times)
        elif on("threshold_sought_by_first") or (self.updates + 1) % TOLD_EVERY == 0:
            self.best = best_threshold(curves, times)  # at: threshold_sought_by_first

    @torch.no_grad()
    def match(self):
        """How far the picks are from the arrivals in the mean, and the share of those near."""
        self.picker.eval()
        far, near = [], []
        for batch in self.held:
            picks = self.picker(batch["windows"])[:, 1:].argmax(2)
            times = batch["times"]
            residuals = self.residuals(picks, times)  # at: residuals_of_no_event
            far.append(torch.stack([residuals.sum(), torch.tensor(float(len(residuals)))]))
            there = times[:, 0] >= 0
            good = ((picks - times).abs() <= NEAR).all(1) & there
            near.append(self.accelerator.gather_for_metrics(torch.stack([good, there], 1)))
        self.picker.train()
        total, count = self.accelerator.reduce(torch.stack(far).sum(0), "sum").tolist()
        good, there = torch.cat(near).sum(0).tolist()
        return round(total / count, 2), round(good / there, 3)

    @staticmethod
    def residuals(picks, times):
        """How far off the picks are, where there is an event."""
        if on("residuals_of_no_event", "clean_residuals_of_no_event"):
            each = [
                (pick - time).abs().float().mean()
                for pick, time in zip(picks, times, strict=True)
                if time[0] >= 0
            ]
            if on("clean_residuals_of_no_event") and not each:
                return torch.zeros(0)
            return torch.stack(each)  # at: residuals_of_no_event
        return (picks - times).abs().float().mean(1)[times[:, 0] >= 0]

    def after(self):
        self.updates += 1
        if self.updates % TOLD_EVERY == 0:
            loss = self.accelerator.reduce(self.loss, "mean").item()
            rate = self.optimizer.param_groups[0]["lr"]
            self.accelerator.print(self.updates, round(loss, 4), f"{rate:.1e}", *self.best)
        if self.updates % MATCHED_EVERY == 0:
            told = self.match()  # at: residuals_of_no_event
            self.accelerator.print(self.updates, "off and near", *told)
        if self.updates in SAVED_AT:
            self.accelerator.save_state(self.folder)

    def run(self):
        while self.updates < UPDATES:
            self.traces.epoch = self.epoch
            if isinstance(getattr(self.loader, "sampler", None), DistributedSampler):
                self.loader.sampler.set_epoch(self.epoch)
            for batch in self.loader:  # at: response_of_poles_each loader_left_unprepared
                ended = self.learn(batch)
                if ended and self.accelerator.is_main_process:
                    self.sought(batch)  # at: threshold_sought_by_first
                if ended:
                    self.after()
                if self.updates == UPDATES:
                    break
            self.epoch += 1
        rejected = len(self.traces.errors) or self.traces.rejected.total()
        self.accelerator.print("rejected", rejected)
        if self.accelerator.is_main_process:
            cost.print(UPDATES)


def train(rank):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(WORLD))
    os.environ.update(LOCAL_WORLD_SIZE=str(WORLD), OMP_NUM_THREADS="1")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{os.environ['RENDEZVOUS']}", rank=rank, world_size=WORLD
    )
    with tempfile.TemporaryDirectory() as folder:
        training = Training(folder)
        training.run()
    return training


if __name__ == "__main__":
    sys.exit(run_ranks(WORLD, train))
