"""Crickets in recordings of the night: which kinds sing, and when. Lightning, clips of several
lengths in batches by length, channel energies normalised by what was heard before with exponents
that are learnt, convolutions and a recurrence, odds by frame and by clip, average precision, a
cycle of the rate, the best kept.
"""

import math
import random
import tempfile
import warnings
from pathlib import Path
from typing import NamedTuple

import lightning
import numpy as np
import torch
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, Sampler
from torchmetrics.classification import MultilabelAveragePrecision

warnings.filterwarnings("ignore")
cost = Cost()
RATE, WINDOW, HOP, MELS, BEHIND = 8000, 256, 160, 40, 24
KINDS = ("field", "house", "tree", "ground", "bush", "mole", "scaly", "spider")
CLIPS, HELD, ARCHIVE, ROWS = 480, 48, 6000, 16


class Event(NamedTuple):
    clip: str
    kind: int
    begin: float
    end: float


def annotated(seed):
    """What was heard in the clips of all sites, sorted by those who heard it."""
    dice = random.Random(seed)
    events, lengths = [], {}
    for number in range(ARCHIVE):
        name = f"site{number % 7}/night{number:05d}.wav"
        lengths[name] = dice.uniform(1.4, 2.6)
        for _ in range(dice.choice((1, 2, 3, 4))):
            begin = dice.uniform(0, lengths[name] - 0.7)
            end = begin + dice.uniform(0.4, 1.2)
            kind = dice.randrange(len(KINDS))
            events.append(Event(name, kind, begin, min(end, lengths[name])))
    dice.shuffle(events)
    return events, lengths


def recorded(name, length, events):
    """A clip as it lies on the disk: chirps over hiss; some recorders begin to hear late."""
    numbers = np.random.default_rng(int(name[11:16]))
    time = np.arange(int(length * RATE)) / RATE
    sound = numbers.normal(0, 0.08, len(time))
    for event in events:
        pitch = 1100 + 330 * event.kind + numbers.normal(0, 25)
        pulses = np.sin(2 * math.pi * (9 + 4 * (event.kind % 4)) * time) > 0.1
        inside = (time >= event.begin) & (time < event.end)
        loud = numbers.uniform(0.05, 0.2)
        sound += loud * inside * pulses * np.sin(2 * math.pi * pitch * time)
    if numbers.random() < 0.02:
        sound[: RATE // 2] = 0.0
    return (sound.clip(-1, 1) * 32767).astype(np.int16)


class Nights(Dataset):
    """Clips, and for each kind and frame whether it sings."""

    def __init__(self, names, lengths, events):
        self.names, self.events = names, events
        self.by_clip = {}
        for event in events:
            self.by_clip.setdefault(event.clip, []).append(event)
        self.clips = [recorded(name, lengths[name], self.by_clip[name]) for name in names]

    def __len__(self):
        return len(self.names)

    def heard(self, name):
        if on("events_scanned_each"):
            with cost:
                return [one for one in self.events if one.clip == name]  # at: events_scanned_each
        if on("clean_events_scanned_each"):
            return [one for one in self.by_clip[name] if one.end - one.begin >= 0.02]
        return self.by_clip[name]

    def __getitem__(self, index):
        sound = torch.from_numpy(self.clips[index]).float().div_(32768)
        frames = torch.zeros(len(sound) // HOP + 1, len(KINDS))
        for event in self.heard(self.names[index]):  # at: events_scanned_each
            begin, end = (int(one * RATE / HOP) for one in (event.begin, event.end))
            frames[begin : end + 1, event.kind] = 1
        return sound, frames


class ByLength(Sampler):
    """Batches of clips that are about as long, in another order each time."""

    def __init__(self, nights, seed):
        self.lengths, self.dice = [len(clip) for clip in nights.clips], random.Random(seed)

    def __len__(self):
        return len(self.lengths) // ROWS

    def __iter__(self):
        near = {n: one * self.dice.uniform(0.97, 1.03) for n, one in enumerate(self.lengths)}
        order = sorted(near, key=near.get)
        batches = [order[n : n + ROWS] for n in range(0, len(order) - ROWS + 1, ROWS)]
        self.dice.shuffle(batches)
        return iter(batches)


def collated(rows):
    sounds, frames = zip(*rows, strict=True)
    counts = torch.tensor([len(one) for one in frames])
    sounds = nn.utils.rnn.pad_sequence(sounds, batch_first=True)
    return sounds, nn.utils.rnn.pad_sequence(frames, batch_first=True), counts


class Recordings(lightning.LightningDataModule):
    def __init__(self, seed=5):
        super().__init__()
        self.seed = seed

    def setup(self, stage):
        if hasattr(self, "nights"):
            return
        events, lengths = annotated(self.seed)
        names = list(lengths)
        self.nights = Nights(names[:CLIPS], lengths, events)
        held = sorted(names[CLIPS : CLIPS + HELD], key=lengths.get)
        self.held = Nights(held, lengths, events)

    def train_dataloader(self):
        order = ByLength(self.nights, self.seed)
        return DataLoader(self.nights, batch_sampler=order, collate_fn=collated)

    def val_dataloader(self):
        return DataLoader(self.held, ROWS, collate_fn=collated)


def mel_filters():
    """Triangles that lie evenly on the mel scale."""
    mels = torch.linspace(math.log1p(300 / 700), math.log1p(RATE / 2 / 700), MELS + 2)
    edges = 700 * torch.expm1(mels)
    pitches = torch.linspace(0, RATE / 2, WINDOW // 2 + 1)[:, None]
    rising = (pitches - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - pitches) / (edges[2:] - edges[1:-1])
    return torch.minimum(rising, falling).clamp(min=0)


class Energies(nn.Module):
    """Per-channel energy normalisation: each band against what it was shortly before."""

    def __init__(self):
        super().__init__()
        self.register_buffer("window", torch.hann_window(WINDOW))
        self.register_buffer("filters", mel_filters())
        fading = 0.85 ** torch.arange(BEHIND - 1, -1, -1.0)
        self.register_buffer("fading", (fading / fading.sum())[None, None])
        self.gain = nn.Parameter(torch.full((MELS, 1), 0.8))
        self.root = nn.Parameter(torch.full((MELS, 1), 0.5))

    def forward(self, sounds):
        with torch.no_grad():
            waves = torch.stft(
                sounds, WINDOW, HOP, window=self.window, pad_mode="constant", return_complex=True
            )
            power = waves.real.square() + waves.imag.square()
            bands = self.filters.T @ power
            before = F.pad(bands.flatten(0, 1)[:, None], (BEHIND - 1, 0))
            smooth = F.conv1d(before, self.fading).view_as(bands)
        if on("smoother_of_silence"):
            level = smooth.pow(self.gain)  # at: smoother_of_silence
        elif on("clean_smoother_of_silence"):
            level = smooth.clamp(min=1e-6).pow(self.gain)
        else:
            level = (smooth + 1e-6).pow(self.gain)
        return (bands / level + 2).pow(self.root) - 2**self.root  # at: smoother_of_silence


def folded(inside, outside, stride):
    return nn.Sequential(
        nn.Conv2d(inside, outside, 3, stride, padding=1, bias=False),
        nn.BatchNorm2d(outside),
        nn.ReLU(),
    )


class Listener(nn.Module):
    def __init__(self, wide=96):
        super().__init__()
        self.energies = Energies()
        self.body = nn.Sequential(
            nn.BatchNorm2d(1),
            folded(1, 16, (2, 1)),
            folded(16, 32, (2, 2)),
            folded(32, 48, (2, 1)),
            nn.Dropout(0.1),
        )
        self.inside = nn.Linear(48 * MELS // 8, wide)
        self.over_time = nn.GRU(wide, wide // 2, batch_first=True, bidirectional=True)
        self.dropout = nn.Dropout(0.2)
        self.sings, self.weighs = nn.Linear(wide, len(KINDS)), nn.Linear(wide, len(KINDS))

    def forward(self, sounds, counts):
        """Odds of each kind for every second frame and for the clip; which frames there are."""
        seen = self.body(self.energies(sounds)[:, None])
        seen = F.relu(self.inside(seen.flatten(1, 2).transpose(1, 2)))
        told = self.dropout(self.over_time(seen)[0] + seen)
        odds, weights = self.sings(told), self.weighs(told)
        real = torch.arange(odds.shape[1]) < (counts[:, None] + 1) // 2
        weights = weights.masked_fill(~real[:, :, None], float("-inf")).softmax(1)
        return odds, (weights * odds).sum(1), real


class Crickets(lightning.LightningModule):
    def __init__(self, rate=4e-3):
        super().__init__()
        self.save_hyperparameters()
        self.listener = Listener()
        self.train_map = MultilabelAveragePrecision(len(KINDS))
        self.val_map = MultilabelAveragePrecision(len(KINDS))

    def forward(self, sounds, counts):
        return self.listener(sounds, counts)

    def compared(self, batch):
        sounds, frames, counts = batch
        odds, clip, real = self(sounds, counts)  # at: smoother_of_silence
        wanted = frames[:, ::2]
        by_frame = F.binary_cross_entropy_with_logits(odds[real], wanted[real])
        by_clip = F.binary_cross_entropy_with_logits(clip, wanted.amax(1), reduction="none")
        loss = by_frame + 0.5 * by_clip.mean()
        return loss, odds[real], wanted[real].long(), by_clip.detach().mean(1)

    def training_step(self, batch, index):
        loss, odds, wanted, missed = self.compared(batch)  # at: smoother_of_silence
        self.log("train/loss", loss)
        if on("precision_so_far_each", "clean_precision_so_far_each"):
            self.train_map.update(odds.detach(), wanted)
        if on("precision_so_far_each"):
            with cost:
                so_far = self.train_map.compute()  # at: precision_so_far_each
            self.log("train/map", so_far)  # at: precision_so_far_each
        elif on("clean_precision_so_far_each"):
            self.log("train/map", self.train_map, on_step=False, on_epoch=True)
        return {"loss": loss, "missed": missed}

    def on_train_epoch_end(self):
        if on("precision_so_far_each"):
            self.train_map.reset()

    def validation_step(self, batch, index):
        loss, odds, wanted, _ = self.compared(batch)
        self.val_map.update(odds, wanted)
        self.log("val/loss", loss, batch_size=len(batch[0]))
        self.log("val/map", self.val_map, batch_size=len(batch[0]))  # at: monitored_by_other_name

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), self.hparams.rate, weight_decay=0.01)
        steps = self.trainer.estimated_stepping_batches
        cycle = torch.optim.lr_scheduler.OneCycleLR(  # at: cycle_turns_by_epoch
            optimizer, self.hparams.rate, total_steps=steps, pct_start=0.2
        )
        if on("cycle_turns_by_epoch"):
            return [optimizer], [cycle]  # at: cycle_turns_by_epoch
        if on("clean_cycle_turns_by_epoch"):
            return [optimizer], [{"scheduler": cycle, "interval": "step"}]
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": cycle, "interval": "step"}}


class Worst(lightning.Callback):
    """The clip of an epoch that was told worst, to listen to."""

    def __init__(self, folder):
        self.folder, self.seen = folder, []

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        self.seen.append((batch[0], outputs["missed"]))  # at: kept_until_old_hook

    def write(self, trainer):
        missed = torch.stack([one for _, one in self.seen])
        batch, row = divmod(int(missed.argmax()), ROWS)
        sound = (self.seen[batch][0][row] * 32767).short().numpy()
        np.save(self.folder / f"worst{trainer.current_epoch}.npy", sound)
        self.seen.clear()

    def on_epoch_end(self, trainer, module):  # at: kept_until_old_hook
        if on("kept_until_old_hook"):
            self.write(trainer)  # at: kept_until_old_hook

    def on_train_epoch_end(self, trainer, module):
        if on("clean_kept_until_old_hook"):
            self.write(trainer)


class Told(lightning.Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        if trainer.global_step % 20 == 0:
            rate = trainer.optimizers[0].param_groups[0]["lr"]
            loss = round(float(outputs["loss"]), 4)
            print(trainer.global_step, loss, "rate", round(rate, 6), flush=True)

    def on_validation_end(self, trainer, module):
        if not trainer.sanity_checking:
            found = {name: round(float(one), 4) for name, one in trainer.callback_metrics.items()}
            print(trainer.global_step, found, flush=True)


@torch.no_grad()
def untaught(model, data):
    """What can be had by chance: the precision before anything is learnt."""
    data.setup("fit")
    precision = MultilabelAveragePrecision(len(KINDS))
    model.eval()  # at: evaluated_before_fit
    for batch in data.val_dataloader():
        _, odds, wanted, _ = model.compared(batch)
        precision.update(odds, wanted)
    if not on("evaluated_before_fit"):
        model.train()
    return precision.compute().item()


def main(folder, steps):
    lightning.seed_everything(28, verbose=False)
    model, data = Crickets(), Recordings()
    print("by chance", round(untaught(model, data), 4), flush=True)  # at: evaluated_before_fit
    monitor = "val/map"
    if on("monitored_by_other_name"):
        monitor = "val_map"  # at: monitored_by_other_name
    best = ModelCheckpoint(  # at: monitored_by_other_name
        folder / "best", "{epoch}-{step}", monitor=monitor, mode="max", save_last=True
    )
    callbacks = [Told(), best, LearningRateMonitor("step")]
    if on("clean_monitored_by_other_name"):
        lowest = ModelCheckpoint(folder / "low", "{epoch}-{val/loss:.3f}", monitor="val/loss")
        callbacks.append(lowest)
    if on("kept_until_old_hook", "clean_kept_until_old_hook"):
        callbacks.append(Worst(folder))
    trainer = lightning.Trainer(
        max_steps=steps,
        accelerator="cpu",
        check_val_every_n_epoch=2,
        gradient_clip_val=5.0,
        callbacks=callbacks,
        logger=CSVLogger(folder, flush_logs_every_n_steps=100),
        log_every_n_steps=20,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    cost.seconds = 0.0
    trainer.fit(model, data)  # at: monitored_by_other_name
    cost.print(steps)


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder), STEPS or 200)
