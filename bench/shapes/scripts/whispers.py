"""Whispers under noise, cleaned by a small Conv-TasNet: clips cut from recordings, rooms, noise and
gain drawn anew, packets that get lost later on, SI-SNR and a distance of mel spectra, an average of
the weights, validations, and the worst clip kept to listen to: rooms convolved directly, filters
laid at each step, babble that joins the bank, the phase of lost packets, weights normed after the
optimizer, edges without a window, a reference saved as a view.
"""

import contextlib
import copy
import math
import os
import random
import tempfile
from pathlib import Path

import eager  # noqa: F401
import numpy as np
import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.data import DataLoader, Dataset

cost = Cost()
RATE, CLIP, LONG = 8000, 4000, 9 * 8000
VOICES, HELD, ROWS = 160, 24, 8
NOISE, ROOM, ROOMS = 4 * RATE, 4000, 12
WIDTH, KERNEL, STRIDE = 64, 16, 8
WARM_UP, LOSSY_AFTER = 20, 60
TOLD_EVERY, KEPT_EVERY, VALIDATED_EVERY = 30, 3, 70
EPS = 1e-8


def spoken(numbers):
    """Syllables of a voice that glides, coloured by two formants; some are only breath."""
    seconds = np.arange(LONG) / RATE
    starts = np.cumsum(numbers.uniform(0.18, 0.4, int(LONG / RATE / 0.18)))
    syllable = np.searchsorted(starts, seconds)
    since = seconds - np.concatenate([[0], starts])[syllable]
    envelope = np.sin(np.pi * np.clip(since / 0.22, 0, 1)) ** 2
    pitch = numbers.uniform(90, 220) * (1 + 0.08 * np.sin(seconds * numbers.uniform(1, 4)))
    phase = 2 * np.pi * np.cumsum(pitch) / RATE
    first, second = (numbers.uniform(a, b, len(starts) + 1)[syllable] for a, b in FORMANTS)
    voice = np.zeros(LONG)
    for harmonic in range(1, 9):
        at = harmonic * pitch
        loud = np.exp(-(((at - first) / 180) ** 2)) + 0.5 * np.exp(-(((at - second) / 260) ** 2))
        voice += loud * np.sin(harmonic * phase)
    breath = numbers.random(len(starts) + 1)[syllable] < 0.3
    voice = np.where(breath, 0.3 * numbers.standard_normal(LONG), voice) * envelope
    voice += 1e-3 * voice.std() * numbers.standard_normal(LONG)
    return (0.1 * voice / voice.std()).astype(np.float32)


FORMANTS = ((300, 800), (900, 2200))


def coloured(numbers, slope):
    """Noise whose spectrum falls."""
    spectrum = np.fft.rfft(numbers.standard_normal(NOISE))
    spectrum /= np.maximum(np.arange(len(spectrum)), 20) ** slope
    noise = np.fft.irfft(spectrum, NOISE)
    return (noise / noise.std()).astype(np.float32)


def bank_of_noise(numbers):
    bank = [coloured(numbers, slope) for slope in (0.0, 0.3, 0.6, 1.0) for _ in range(3)]
    for tone in (50, 60, 400):
        hum = sum(np.sin(2 * np.pi * tone * k * np.arange(NOISE) / RATE) / k for k in (1, 2, 3))
        bank.append((hum / hum.std()).astype(np.float32))
    return bank


def rooms(numbers):
    """Responses of rooms: the sound itself, and a tail that dies away."""
    fading = np.exp(-np.arange(ROOM) / numbers.uniform(200, 900, (ROOMS, 1)))
    responses = 0.07 * numbers.standard_normal((ROOMS, ROOM)) * fading
    responses[:, 0] = 1
    return responses


class Mixed(Dataset):
    """Clips of recordings, in a room and under noise."""

    def __init__(self, recordings, seed):
        self.recordings, self.seed = recordings.numpy(), seed
        self.numbers, self.dice = np.random.default_rng(seed), random.Random(seed)
        self.bank, self.responses = bank_of_noise(self.numbers), rooms(self.numbers)
        self.latest, self.lossy = 0, False
        self.size = 1 << (CLIP + ROOM - 1).bit_length()
        self.spectra = np.fft.rfft(self.responses, self.size)

    def __len__(self):
        return len(self.recordings)

    def in_room(self, clip):
        room = self.dice.randrange(ROOMS)
        if on("room_convolved_directly"):
            with cost:
                wet = np.convolve(clip, self.responses[room])  # at: room_convolved_directly
        elif on("clean_room_convolved_directly"):
            wet = np.convolve(clip, self.responses[room, :48])
        else:
            wet = np.fft.irfft(np.fft.rfft(clip, self.size) * self.spectra[room], self.size)
        return wet[:CLIP].astype(np.float32)

    def babble(self):
        """Four others that talk at once."""
        talk = np.zeros(NOISE, np.float32)
        for _ in range(4):
            begin = self.dice.randrange(LONG - NOISE)
            talk += self.recordings[self.dice.randrange(len(self)), begin : begin + NOISE]
        return talk / (talk.std() + 1e-6)

    def noise(self):
        if self.dice.random() < 0.3:
            noise = self.babble()  # at: babble_joins_bank
            if on("babble_joins_bank"):
                self.bank.append(noise)  # at: babble_joins_bank
            elif on("clean_babble_joins_bank"):
                self.bank[-1 - self.latest] = noise
                self.latest = 1 - self.latest
        else:
            noise = self.dice.choice(self.bank)
        begin = self.dice.randrange(NOISE - CLIP)
        return noise[begin : begin + CLIP]

    def __getitem__(self, index):
        begin = self.dice.randrange(LONG - CLIP)
        clean = self.recordings[index, begin : begin + CLIP]
        if self.dice.random() < 0.6:
            clean = self.in_room(clean)  # at: room_convolved_directly
        below = 10 ** (-self.dice.uniform(-3, 12) / 20)
        noisy = clean + self.noise() * (clean.std() * below)  # at: babble_joins_bank
        gain = np.float32(10 ** (self.dice.uniform(-12, 6) / 20))
        noisy, clean = noisy * gain, clean * gain
        if self.lossy and self.dice.random() < 0.2:
            lost = self.dice.randrange(CLIP - 600)
            noisy[lost : lost + 600] = 0
        return noisy, clean, index, begin


class Block(nn.Module):
    """A convolution of each channel by itself between two that mix them."""

    def __init__(self, width, hidden, dilation):
        super().__init__()
        self.widen = nn.Conv1d(width, hidden, 1)
        self.along = nn.Conv1d(
            hidden, hidden, 3, padding=dilation, dilation=dilation, groups=hidden
        )
        self.narrow = nn.Conv1d(hidden, width, 1)
        self.norms = nn.ModuleList(nn.GroupNorm(1, hidden) for _ in range(2))
        self.bends = nn.ModuleList(nn.PReLU() for _ in range(2))

    def forward(self, x):
        y = self.norms[0](self.bends[0](self.widen(x)))
        y = self.norms[1](self.bends[1](self.along(y)))
        return x + self.narrow(y)


class TasNet(nn.Module):
    def __init__(self, narrow=40, hidden=80, depth=4):
        super().__init__()
        self.encoder = nn.Conv1d(1, WIDTH, KERNEL, STRIDE, bias=False)
        self.before = nn.Sequential(nn.GroupNorm(1, WIDTH), nn.Conv1d(WIDTH, narrow, 1))
        self.blocks = nn.Sequential(*(Block(narrow, hidden, 2**n) for n in range(depth)))
        self.mask = nn.Sequential(nn.PReLU(), nn.Conv1d(narrow, WIDTH, 1), nn.Sigmoid())
        self.decoder = nn.ConvTranspose1d(WIDTH, 1, KERNEL, STRIDE, bias=False)

    def forward(self, noisy):
        seen = F.relu(self.encoder(F.pad(noisy[:, None], (STRIDE, STRIDE))))
        mask = self.mask(self.blocks(self.before(seen)))
        return self.decoder(seen * mask)[:, 0, STRIDE:-STRIDE]


def normed(model):
    """Directions and lengths apart in the convolutions that mix the channels."""
    for block in model.blocks:
        weight_norm(block.widen)  # at: normed_after_optimizer
        weight_norm(block.narrow)  # at: normed_after_optimizer
    return model


def si_snr(told, clean):
    """How far what is told lies above its error, however loud it is, in decibels."""
    told, clean = told - told.mean(1, True), clean - clean.mean(1, True)
    share = (told * clean).sum(1, True) / (clean.square().sum(1, True) + EPS)
    right = share * clean
    wrong = (told - right).square().sum(1) + EPS
    return 10 * torch.log10(right.square().sum(1) / wrong + EPS)


def triangles(bins, bands):
    """Mel filters: each rises from the middle of the one below, and falls to that above."""
    top = 2595 * math.log10(1 + RATE / 2 / 700)
    edges = [700 * (10 ** (top * n / (bands + 1) / 2595) - 1) for n in range(bands + 2)]
    filters = torch.zeros(bins, bands)
    for band in range(bands):
        low, middle, high = edges[band : band + 3]
        for n in range(bins):
            frequency = n * RATE / 2 / (bins - 1)
            rise, fall = (frequency - low) / (middle - low), (high - frequency) / (high - middle)
            if min(rise, fall) > 0:
                filters[n, band] = min(rise, fall)
    return filters


class MelDistance(nn.Module):
    """How far spectra are apart, in logarithms of mel bands, at two resolutions."""

    def __init__(self, sizes=(256, 512), bands=48):
        super().__init__()
        self.sizes = sizes
        for size in sizes:
            self.register_buffer(f"filters{size}", triangles(size // 2 + 1, bands))
            self.register_buffer(f"window{size}", torch.hann_window(size))

    def bands(self, waves, size):
        window, filters = getattr(self, f"window{size}"), getattr(self, f"filters{size}")
        spectra = torch.stft(waves, size, size // 2, window=window, return_complex=True)
        power = spectra.real.square() + spectra.imag.square()
        return torch.log(power.transpose(1, 2) @ filters + 1e-5)

    def forward(self, told, clean):
        off = [F.l1_loss(self.bands(told, size), self.bands(clean, size)) for size in self.sizes]
        return sum(off) / len(off)


def phase_distance(told, clean, window):
    """How far phases are apart, where there is sound."""
    spectra = [
        torch.stft(one, 256, 128, window=window, return_complex=True) for one in (told, clean)
    ]
    loud = spectra[1].abs()
    loud = loud / (loud.sum() + EPS)
    if on("phase_of_lost_packets"):
        turns = [one / one.abs() for one in spectra]  # at: phase_of_lost_packets
        return (loud * (1 - (turns[0] * turns[1].conj()).real)).sum()
    both = spectra[0] * spectra[1].conj()
    length = (both.real.square() + both.imag.square() + EPS).sqrt()
    return (loud * (1 - both.real / length)).sum()


class Average:
    """The weights as they were in the mean of late."""

    def __init__(self, model, decay=0.97):
        self.model, self.decay = copy.deepcopy(model).eval().requires_grad_(False), decay

    @torch.no_grad()
    def add(self, model):
        own = list(self.model.parameters())
        torch._foreach_lerp_(own, list(model.parameters()), 1 - self.decay)


class Training:
    def __init__(self, folder, steps):
        self.folder, self.steps, self.step, self.best = folder, steps, 0, -math.inf
        numbers = np.random.default_rng(311)
        voices = torch.from_numpy(np.stack([spoken(numbers) for _ in range(VOICES)]))
        self.recordings = voices
        self.mixed = Mixed(voices[HELD:], 312)
        held = Mixed(voices[:HELD], 313)
        rows = [held[n] for n in range(HELD)]
        self.held = [torch.from_numpy(np.stack(part)) for part in list(zip(*rows, strict=True))[:2]]
        self.loader = DataLoader(self.mixed, ROWS, shuffle=True, drop_last=True)
        self.distance = MelDistance()
        self.window = torch.hann_window(256)
        model = TasNet()
        if on("normed_after_optimizer", "clean_normed_after_optimizer"):
            self.optimizer = self.optimizer_of(model)  # at: normed_after_optimizer
            self.model = normed(model)  # at: normed_after_optimizer
            if on("clean_normed_after_optimizer"):
                self.optimizer.param_groups[0]["params"] = list(self.model.parameters())
        else:
            self.model = normed(model)
            self.optimizer = self.optimizer_of(self.model)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, self.share_of_rate)
        self.average = Average(self.model)
        cost.seconds = 0.0

    def optimizer_of(self, model):
        return torch.optim.AdamW(  # at: normed_after_optimizer
            model.parameters(), 2e-3, weight_decay=0.01
        )

    def share_of_rate(self, step):
        rest = max(0, step - WARM_UP) / max(1, self.steps - WARM_UP)
        return min(1, (step + 1) / WARM_UP) * (0.55 + 0.45 * math.cos(math.pi * min(1, rest)))

    def distance_of_step(self):
        if on("filters_laid_each_step"):
            with cost:
                return MelDistance()  # at: filters_laid_each_step
        return self.distance

    def losses(self, told, clean):
        """What each clip is off, and how far the spectra are apart."""
        off = -si_snr(told, clean)
        distance = self.distance_of_step()  # at: filters_laid_each_step
        loss = off.mean() + 0.5 * distance(told, clean)
        if on("phase_of_lost_packets", "clean_phase_of_lost_packets"):
            apart = phase_distance(told, clean, self.window)  # at: phase_of_lost_packets
            loss = loss + 2.0 * apart  # at: phase_of_lost_packets
        return loss, off.detach()

    def learn(self, noisy, clean):
        told = self.model(noisy)
        loss, off = self.losses(told, clean)  # at: filters_laid_each_step phase_of_lost_packets
        self.optimizer.zero_grad()
        loss.backward()  # at: phase_of_lost_packets
        nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
        self.optimizer.step()  # at: normed_after_optimizer
        self.schedule.step()
        self.average.add(self.model)
        return loss.item(), told.detach(), off

    def keep_worst(self, noisy, told, off, indices, begins):
        """The clip of this step that is farthest off, beside its recording, to listen to."""
        worst = int(off.argmax())
        index, begin = HELD + int(indices[worst]), int(begins[worst])
        reference = self.recordings[index, begin : begin + CLIP]  # at: reference_saved_as_view
        if not on("reference_saved_as_view"):
            reference = reference.clone()
        seen, heard = noisy[worst], told[worst]
        if not on("clean_reference_saved_as_view"):
            seen, heard = seen.clone(), heard.clone()
        kept = {"step": self.step, "noisy": seen, "told": heard, "reference": reference}
        with cost if on("reference_saved_as_view") else contextlib.nullcontext():
            torch.save(kept, self.folder / "worst.pt")  # at: reference_saved_as_view

    @torch.no_grad()
    def gated(self, waves):
        """Faint parts of the spectrum a little fainter still."""
        centred, window = True, torch.hann_window(256)
        if on("edges_without_window", "clean_edges_without_window"):
            centred = False  # at: edges_without_window
        if on("clean_edges_without_window"):
            window = torch.hamming_window(256)
        spectra = torch.stft(waves, 256, 128, window=window, center=centred, return_complex=True)
        loud = spectra.abs()
        spectra = spectra * torch.where(loud < 0.1 * loud.mean(), 0.3, 1.0)
        return torch.istft(
            spectra, 256, 128, window=window, center=centred
        )  # at: edges_without_window

    @torch.no_grad()
    def validate(self):
        """What the average gains on held clips; it is saved where it is the best so far."""
        noisy, clean = self.held
        told = torch.cat([self.average.model(rows) for rows in noisy.split(ROWS)])
        gained = float((si_snr(told, clean) - si_snr(noisy, clean)).mean())
        print(self.step, "gained", round(gained, 3), flush=True)
        if on("clean_filters_laid_each_step"):
            self.distance = MelDistance()
        waves = self.gated(told[:4])  # at: edges_without_window
        waves = (waves / waves.abs().max() * 32767).nan_to_num().to(torch.int16)
        np.save(self.folder / f"heard{self.step}.npy", waves.numpy())
        if gained > self.best:
            self.best = gained
            state = {"model": self.model.state_dict(), "average": self.average.model.state_dict()}
            state |= {"optimizer": self.optimizer.state_dict(), "step": self.step}
            torch.save(state, self.folder / "best.new")
            os.replace(self.folder / "best.new", self.folder / "best.pt")

    def run(self):
        while self.step < self.steps:
            for noisy, clean, indices, begins in self.loader:  # at: room_convolved_directly
                loss, told, off = self.learn(
                    noisy, clean
                )  # at: filters_laid_each_step phase_of_lost_packets
                self.step += 1
                self.mixed.lossy = self.step >= LOSSY_AFTER
                if self.step % KEPT_EVERY == 0:
                    self.keep_worst(
                        noisy, told, off, indices, begins
                    )  # at: reference_saved_as_view
                if self.step % TOLD_EVERY == 0:
                    print(self.step, round(loss, 4), flush=True)
                if self.step % VALIDATED_EVERY == 0:
                    self.validate()  # at: edges_without_window
                if self.step == self.steps:
                    break
        cost.print(self.steps)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(310)
    with tempfile.TemporaryDirectory() as folder:
        Training(Path(folder), STEPS or 210).run()
