"""Bats by their calls: which of eight kinds are heard in a window of a night, from spectra behind a
bank of filters that is learned; a stream over two workers, bfloat16, blocks computed again in the
backward, an average of weights over the last part: a noise floor of a whole night, a certainty in
few bits, statistics of the average at each look, pictures for a gallery, a bank without gradient,
scores of few bits, thresholds swept at each step.
"""

import itertools
import tempfile
from collections import deque
from pathlib import Path

import numpy as np
import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

KINDS = (
    "noctule",
    "serotine",
    "pipistrelle",
    "soprano",
    "barbastelle",
    "myotis",
    "plecotus",
    "rhino",
)
NIGHT, WINDOW, FFT, HOP = 1 << 17, 8192, 256, 128
BANDS, BINS, FRAMES = 48, FFT // 2 + 1, WINDOW // HOP + 1
TOTAL = STEPS or 250
BATCH, NIGHTS, RATE, CLIP, GAMMA = 16, 24, 4e-3, 2.0, 0.5
LOG_EVERY, LOOK_EVERY, SAVE_EVERY, AVERAGE_FROM = 25, 50, 125, int(0.6 * TOTAL)
GRID = torch.arange(0.01, 1, 0.01)

swept, looked = Cost(), Cost()


def call(kind, rng):
    """One call: a sweep from high to low, or a held tone with short ends."""
    length = int(rng.integers(500, 900))
    time = np.linspace(0, 1, length)
    top, end = 0.42 - 0.04 * kind, 0.30 - 0.035 * kind
    pitch = end + (top - end) * (1 - time) ** (1 + kind % 3)
    pitch = pitch * rng.uniform(0.98, 1.02)
    return np.hanning(length) * np.sin(2 * np.pi * np.cumsum(pitch)) * rng.uniform(0.5, 1.0)


def night(rng):
    """What a recorder heard, and who called from which sample on."""
    heard = rng.normal(0, 0.03, NIGHT) + 0.05 * np.sin(2 * np.pi * 0.02 * np.arange(NIGHT))
    calls = []
    for start in np.sort(rng.integers(0, NIGHT - 900, 80)):
        kind = int(rng.integers(len(KINDS)))
        sound = call(kind, rng)
        heard[start : start + len(sound)] += sound
        calls.append((start + len(sound) // 2, kind))
    return torch.from_numpy(heard.astype(np.float32)), np.array(calls)


def powers(sound):
    waves = torch.stft(sound, FFT, HOP, window=torch.hann_window(FFT), return_complex=True)
    return waves.real.square() + waves.imag.square()  # at: floor_of_whole_night


def noise_floor(sound):
    """The usual power of each bin over a recording."""
    return powers(sound).quantile(0.4, 1, keepdim=True) + 1e-6  # at: floor_of_whole_night


class Nights(IterableDataset):
    """Windows without end, each worker from nights of its own."""

    def __init__(self, seed, count):
        rng = np.random.default_rng(seed)
        self.seed = seed
        self.nights = [night(rng) for _ in range(count)]
        self.floors = {}
        if not on("floor_of_whole_night"):
            self.floors = {own: noise_floor(sound) for own, (sound, _) in enumerate(self.nights)}

    def floor(self, own, cut):
        if on("floor_of_whole_night"):
            return noise_floor(self.nights[own][0])  # at: floor_of_whole_night
        if on("clean_floor_of_whole_night"):  # what is heard just now has a say
            return 0.9 * self.floors[own] + 0.1 * cut.median(1, keepdim=True).values
        return self.floors[own]

    def __iter__(self):
        worker = get_worker_info()
        first, every = (worker.id, worker.num_workers) if worker else (0, 1)
        mine = range(first, len(self.nights), every)
        rng = np.random.default_rng((self.seed, first))
        while True:
            own = int(rng.choice(mine))
            sound, calls = self.nights[own]
            start = int(rng.integers(NIGHT - WINDOW))
            cut = powers(sound[start : start + WINDOW])
            target = torch.zeros(len(KINDS))
            target[calls[(calls[:, 0] >= start) & (calls[:, 0] < start + WINDOW), 1]] = 1
            yield cut / self.floor(own, cut), target  # at: floor_of_whole_night


class Bank(nn.Module):
    """Filters over the bins, each a share of one, that begin as triangles."""

    def __init__(self):
        super().__init__()
        centres = torch.linspace(2, BINS - 3, BANDS)[:, None]
        self.shapes = nn.Parameter(-((torch.arange(BINS) - centres) / 2.5).abs())
        self.gain = nn.Parameter(torch.ones(BANDS, 1))

    @torch.no_grad()
    def table(self):
        return self.shapes.softmax(1)  # at: bank_built_without_grad

    def forward(self, spectra):
        if on("bank_built_without_grad"):
            shares = self.table()  # at: bank_built_without_grad
        elif on("clean_bank_built_without_grad") and not self.training:
            shares = self.table()
        else:
            shares = self.shapes.softmax(1)
        return self.gain * torch.log(shares @ spectra + 0.1)


class Block(nn.Module):
    def __init__(self, width, stride):
        super().__init__()
        wide = width * stride
        self.body = nn.Sequential(
            nn.Conv2d(width, wide, 3, stride, 1),
            nn.GroupNorm(4, wide),
            nn.SiLU(),
            nn.Conv2d(wide, wide, 3, 1, 1),
            nn.GroupNorm(4, wide),
        )
        self.past = nn.Conv2d(width, wide, 1, stride)

    def forward(self, x):
        return F.silu(self.body(x) + self.past(x))


class Ear(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.bank = Bank()
        self.stem = nn.Sequential(
            nn.Conv2d(1, width, 5, 2, 2, bias=False), nn.BatchNorm2d(width), nn.SiLU()
        )
        self.blocks = nn.ModuleList([Block(width, 1), Block(width, 2), Block(2 * width, 2)])
        self.head = nn.Sequential(nn.Dropout(0.1), nn.Linear(8 * width, len(KINDS)))

    def forward(self, spectra):
        x = self.stem(self.bank(spectra)[:, None])
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.training else block(x)
        return self.head(torch.cat([x.amax((2, 3)), x.mean((2, 3))], 1))


def focal(logits, target):
    """Cross entropy that cares less for what is sure already."""
    if on("certainty_in_few_bits", "clean_certainty_in_few_bits"):
        if on("clean_certainty_in_few_bits"):
            logits = logits.float()
        sure = logits.sigmoid().clamp(1e-6, 1 - 1e-6)  # at: certainty_in_few_bits
        heard = target * (1 - sure) ** GAMMA * sure.log()
        silent = (1 - target) * sure**GAMMA * (1 - sure).log()  # at: certainty_in_few_bits
        return -(heard + silent).mean()
    logits = logits.float()
    entropy = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
    wrong = (target - logits.sigmoid()).abs()
    return (wrong**GAMMA * entropy).mean()


def average_precision(scores, truth):
    """Mean over the kinds that were heard at all."""
    order = scores.argsort(0, descending=True)
    hits = truth.gather(0, order)
    precision = hits.cumsum(0) / torch.arange(1, len(hits) + 1)[:, None]
    heard = hits.sum(0)
    return float(((precision * hits).sum(0) / heard.clamp(min=1))[heard > 0].mean())


def by_hour(scores):
    """How busy each half of the held windows is, for the notes."""
    return [round(float(half.sum(1).mean()), 2) for half in np.array_split(scores, 2)]


@torch.no_grad()
def look(model, held):
    training = model.training
    model.eval()
    scores, truth = [], []
    for spectra, target in held:
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(spectra)
        scores.append(logits.sigmoid())
        truth.append(target)
    model.train(training)
    scores, truth = torch.cat(scores), torch.cat(truth)
    busy = []
    if on("scores_of_few_bits"):
        busy = by_hour(scores.numpy())  # at: scores_of_few_bits
    elif on("clean_scores_of_few_bits"):
        busy = by_hour(scores.float().numpy())
    return average_precision(scores.float(), truth), busy


class Gallery:
    """Pictures of spectra, a mean one of each bundle written to a folder."""

    def __init__(self, folder):
        self.folder, self.waiting, self.written = folder, [], 0

    def add(self, spectra):
        self.waiting.append(spectra.sqrt())  # at: pictures_wait_for_close

    def flush(self):
        if self.waiting:
            np.save(self.folder / f"{self.written}.npy", torch.stack(self.waiting).mean((0, 1)))
            self.waiting, self.written = [], self.written + 1


class Thresholds:
    """For each kind, from which score on it is best called heard, by the latest batches."""

    def __init__(self):
        self.recent, self.best = deque(maxlen=8), [0.5] * len(KINDS)

    def add(self, logits, target):
        self.recent.append((logits.detach().float().sigmoid(), target))

    def sweep_at_once(self):
        scores = torch.cat([own for own, _ in self.recent])[..., None]
        truth = torch.cat([own for _, own in self.recent]).bool()[..., None]
        called = scores > GRID
        right, all_of = (called & truth).sum(0), called.sum(0) + truth.sum(0)
        self.best = GRID[(2 * right / all_of.clamp(min=1)).argmax(1)].tolist()

    def sweep(self):
        scores = torch.cat([own for own, _ in self.recent])
        truth = torch.cat([own for _, own in self.recent]).bool()
        for kind in range(len(KINDS)):
            best = -1.0
            for threshold in GRID.tolist():
                called = scores[:, kind] > threshold  # at: thresholds_swept_each_step
                right = (called & truth[:, kind]).sum().item()  # at: thresholds_swept_each_step
                all_of = (
                    called.sum().item() + truth[:, kind].sum().item()
                )  # at: thresholds_swept_each_step
                value = 2 * right / max(1, all_of)
                if value > best:
                    best, self.best[kind] = value, threshold


def settled(average, bundles, held):
    """The average with statistics of its own, and how good it is."""
    with torch.autocast("cpu", torch.bfloat16):
        update_bn(bundles, average)  # at: average_settled_each_look
    return look(average, held)[0]


def train(folder):
    stream = DataLoader(Nights(31, NIGHTS), BATCH, num_workers=2, prefetch_factor=4)
    held = list(itertools.islice(DataLoader(Nights(7, 6), BATCH), 6))
    bundles = list(itertools.islice(DataLoader(Nights(13, 6), BATCH), 32))
    model = Ear()
    average = AveragedModel(model)
    optimizer = torch.optim.AdamW(model.parameters(), RATE, weight_decay=0.01)
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 20)
    late = None
    gallery, thresholds = Gallery(folder), Thresholds()
    running, own = 0.0, 0.0
    model.train()
    for step, (spectra, target) in enumerate(itertools.islice(stream, TOTAL), 1):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(spectra)
            loss = focal(logits, target)  # at: certainty_in_few_bits
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        if step == AVERAGE_FROM:
            late = SWALR(optimizer, RATE / 4, anneal_epochs=20)
        if late is None:
            warm.step()
        else:
            late.step()
            average.update_parameters(model)

        thresholds.add(logits, target)
        if on("clean_thresholds_swept_each_step"):
            with swept:
                thresholds.sweep_at_once()
        elif on("thresholds_swept_each_step") or step % LOG_EVERY == 0:
            with swept:
                thresholds.sweep()  # at: thresholds_swept_each_step

        if on("pictures_wait_for_close", "clean_pictures_wait_for_close"):
            gallery.add(spectra)  # at: pictures_wait_for_close
            if on("clean_pictures_wait_for_close") and step % LOG_EVERY == 0:
                gallery.flush()
        elif step % LOG_EVERY == 0:
            gallery.add(spectra)

        if on("average_settled_each_look") and step % 10 == 0:
            with looked:
                own = settled(
                    average if late else model, bundles, held
                )  # at: average_settled_each_look
        elif on("clean_average_settled_each_look") and step % (2 * LOOK_EVERY) == 0:
            with looked:
                own = settled(average if late else model, bundles[:2], held[:3])
        if step % LOOK_EVERY == 0:
            precision, busy = look(model, held)  # at: scores_of_few_bits
            print(f"{step:5d} precision {precision:.3f}", *busy, flush=True)
        if step % LOG_EVERY == 0:
            running = loss.item() if step == LOG_EVERY else 0.5 * running + 0.5 * loss.item()
            rate = optimizer.param_groups[0]["lr"]
            print(
                f"{step:5d} loss {running:.4f} rate {rate:.1e}", *([own] if own else []), flush=True
            )
        if step % SAVE_EVERY == 0:
            torch.save({"model": model.state_dict(), "step": step}, folder / "ear.pt")
    gallery.flush()
    print(
        "average",
        settled(average, bundles, held),
        "thresholds",
        np.round(thresholds.best, 2),
        flush=True,
    )
    (swept if looked.seconds == 0 else looked).print(TOTAL)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(31)
    with tempfile.TemporaryDirectory() as place:
        train(Path(place))
