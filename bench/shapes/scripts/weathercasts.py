"""Forecasts of a coastal station taken down letter by letter: a bidirectional LSTM under DDP on two
ranks, CTC over made-up spectrograms, batches of about equal length, stripes masked out, the rate
brought down where the letters held out are no longer read better.
"""

import os
import sys
import time
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from forked import run_ranks
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, Dataset, Sampler

WORLD, ROWS = 2, 12
UPDATES = STEPS or 260
LETTERS, BLANK, BINS = 18, 0, 64
SPOKEN, HELD, HURRIED, WIDTH = 720, 32, 6, 80
RATE, CLIP, FACTOR = 2e-3, 0.7, 0.7
TOLD_EVERY, LOOKED_EVERY, SEED = 20, 15, 83
CACHED, NOISE = 40, 2.5
PADDED = "padded_through_lists", "clean_padded_through_lists"
COUNTED = "edits_counted_each_update", "clean_edits_counted_each_update"
HURRIES = "targets_longer_than_frames", "clean_targets_longer_than_frames"
VIEWS = "views_cached_by_mask", "clean_views_cached_by_mask"
EMPTIES = "empties_sent_if_any", "clean_empties_sent_if_any"
cost = Cost()


@dataclass
class Cast:
    sound: np.ndarray
    text: np.ndarray


class Station(Dataset):
    """Forecasts that were read aloud; a few announcers are in a hurry."""

    def __init__(self, count, seed, masks):
        dice = np.random.default_rng((SEED, seed))
        voices = np.random.default_rng(SEED).normal(0, 1, (LETTERS + 1, BINS)).astype(np.float32)
        self.casts = [self.read(dice, voices, (2, 5)) for _ in range(count)]
        if masks and on(*HURRIES):
            self.casts += [self.read(dice, voices, (1, 2)) for _ in range(HURRIED)]
        self.masks, self.dice = masks, dice
        self.views = OrderedDict()

    @staticmethod
    def read(dice, voices, pace):
        text = [int(dice.integers(1, LETTERS + 1))]
        for _ in range(dice.integers(22, 37)):
            step = int(dice.integers(1, LETTERS))
            text.append((text[-1] - 1 + step) % LETTERS + 1)
        frames = np.repeat(text, dice.integers(*pace, len(text)))
        sound = voices[frames] + dice.normal(0, NOISE, (len(frames), BINS))
        return Cast(sound.astype(np.float32), np.array(text))

    def __len__(self):
        return len(self.casts)

    def lengths(self):
        return np.array([len(cast.sound) for cast in self.casts])

    def level(self, index):
        sound = self.casts[index].sound
        return (sound - sound.mean(0)) / (sound.std(0) + 1e-3)

    def mask(self, length):
        """A stripe of bins and one of frames."""
        high, long = self.dice.integers(1, 9), self.dice.integers(1, 7)
        low, begin = self.dice.integers(0, BINS - high), self.dice.integers(0, length - long)
        return int(low), int(low + high), int(begin), int(begin + long)

    def view(self, index):
        if on("clean_views_cached_by_mask"):
            sound = self.views.get(index)
            if sound is None:
                sound = self.views[index] = self.level(index)
                if len(self.views) > CACHED:
                    self.views.popitem(last=False)
            sound = sound.copy()
        else:
            sound = self.level(index)
        if self.masks:
            low, high, begin, end = self.mask(len(sound))
            sound[:, low:high] = 0
            sound[begin:end] = 0
        return sound

    def cached_view(self, index):
        """A view that was made before need not be made again."""
        mask = self.mask(len(self.casts[index].sound))
        key = (index, mask)  # at: views_cached_by_mask
        if key not in self.views:
            sound = self.level(index)
            sound[:, mask[0] : mask[1]] = 0
            sound[mask[2] : mask[3]] = 0
            self.views[key] = sound  # at: views_cached_by_mask
        return self.views[key]

    def __getitem__(self, index):
        if self.masks and on("views_cached_by_mask"):
            return self.cached_view(index), self.casts[index].text  # at: views_cached_by_mask
        return self.view(index), self.casts[index].text


class Buckets(Sampler):
    """Batches of forecasts that are about as long; each rank has its own of every two."""

    def __init__(self, lengths, rank):
        self.lengths, self.rank, self.epoch = lengths, rank, 0

    def __iter__(self):
        dice = np.random.default_rng((SEED, 3, self.epoch))
        order = np.argsort(self.lengths + dice.uniform(0, 6, len(self.lengths)))
        size = WORLD * ROWS
        batches = [order[begin : begin + size] for begin in range(0, len(order), size)]
        if len(batches[-1]) < size:
            batches.pop()
        for number in dice.permutation(len(batches)):
            yield batches[number][self.rank :: WORLD].tolist()
        self.epoch += 1

    def __len__(self):
        return len(self.lengths) // (WORLD * ROWS)


def pad(sounds):
    """All as long as the longest, by silence."""
    longest = max(len(sound) for sound in sounds)
    if on("padded_through_lists"):
        rows = []
        for sound in sounds:
            rows.append(
                sound.tolist() + [[0.0] * BINS] * (longest - len(sound))
            )  # at: padded_through_lists
        return torch.tensor(rows)  # at: padded_through_lists
    if on("clean_padded_through_lists"):
        rows = [torch.from_numpy(sound) for sound in sounds]
        return nn.utils.rnn.pad_sequence(rows, batch_first=True)
    padded = torch.zeros(len(sounds), longest, BINS)
    for row, sound in zip(padded, sounds, strict=True):
        row[: len(sound)] = torch.from_numpy(sound)
    return padded


def collate(casts):
    sounds, texts = zip(*casts, strict=True)
    if on(*PADDED):
        with cost:
            padded = pad(sounds)  # at: padded_through_lists
    else:
        padded = pad(sounds)
    frames = torch.tensor([len(sound) for sound in sounds])
    letters = torch.tensor([len(text) for text in texts])
    return padded, frames, torch.from_numpy(np.concatenate(texts)), letters


class Recogniser(nn.Module):
    def __init__(self):
        super().__init__()
        self.inlet = nn.Conv1d(BINS, WIDTH, 5, 2, 2)
        self.norm = nn.LayerNorm(WIDTH)
        self.memory = nn.LSTM(WIDTH, WIDTH, batch_first=True, bidirectional=True)
        self.drop = nn.Dropout(0.1)
        self.outlet = nn.Linear(2 * WIDTH, LETTERS + 1)
        with torch.no_grad():
            self.outlet.bias[BLANK] = -1.0

    def forward(self, sounds):
        x = F.gelu(self.norm(self.inlet(sounds.transpose(1, 2)).transpose(1, 2)))
        x, _ = self.memory(x)
        return self.outlet(self.drop(x)).log_softmax(2)


def said(scores, frames):
    """The letters that are likeliest, without repeats and blanks."""
    texts = []
    for path, length in zip(scores.argmax(2).numpy(), ((frames + 1) // 2).tolist(), strict=True):
        path = path[:length]
        kept = path[np.insert(path[1:] != path[:-1], 0, True)]
        texts.append(kept[kept != BLANK])
    return texts


def edits(ours, true):
    """Letters to put in, to leave out and to change."""
    table = np.zeros((len(ours) + 1, len(true) + 1), int)
    table[:, 0], table[0] = np.arange(len(ours) + 1), np.arange(len(true) + 1)
    for row in range(1, len(ours) + 1):
        for column in range(1, len(true) + 1):
            table[row, column] = min(
                table[row - 1, column] + 1,
                table[row, column - 1] + 1,
                table[row - 1, column - 1] + (ours[row - 1] != true[column - 1]),
            )  # at: edits_counted_each_update
    return int(table[-1, -1])


class Session:
    def __init__(self, rank):
        self.rank, self.update, self.read_wrong = rank, 0, 0.0
        self.station = Station(SPOKEN, 1, masks=True)
        buckets = Buckets(self.station.lengths(), rank)
        self.loader = DataLoader(self.station, batch_sampler=buckets, collate_fn=collate)
        own = Station(HELD, 2, masks=False)
        own.casts = own.casts[rank::WORLD]
        self.held = DataLoader(own, ROWS, collate_fn=collate)
        torch.manual_seed(SEED)
        self.net = DistributedDataParallel(Recogniser())
        torch.manual_seed(SEED + 1 + rank)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), RATE, weight_decay=1e-3)
        self.schedule = ReduceLROnPlateau(
            self.optimizer, factor=FACTOR, patience=1, threshold=0.02, min_lr=RATE / 40
        )

    def loss(self, scores, frames, letters, lengths):
        return F.ctc_loss(
            scores.transpose(0, 1),
            letters,
            (frames + 1) // 2,
            lengths,
            blank=BLANK,
            zero_infinity=on("clean_targets_longer_than_frames"),
        )  # at: targets_longer_than_frames

    def learn(self, batch):
        sounds, frames, letters, lengths = batch
        scores = self.net(sounds)
        loss = self.loss(scores, frames, letters, lengths)  # at: targets_longer_than_frames
        self.optimizer.zero_grad()
        loss.backward()
        parameters = list(self.net.parameters())
        if on("cut_after_the_update"):
            self.optimizer.step()
            norm = nn.utils.clip_grad_norm_(parameters, CLIP)  # at: cut_after_the_update
        elif on("clean_cut_after_the_update"):
            nn.utils.clip_grad_norm_(parameters, CLIP)
            self.optimizer.step()
            norm = nn.utils.get_total_norm([one.grad for one in parameters])
        else:
            norm = nn.utils.clip_grad_norm_(parameters, CLIP)
            self.optimizer.step()
        self.update += 1
        return loss.detach(), norm, scores.detach()

    def wrong(self, scores, frames, letters, lengths):
        """How many letters are wrong, of how many."""
        texts = np.split(letters.numpy(), lengths.cumsum(0)[:-1].numpy())
        ours = said(scores, frames)
        count = sum(
            edits(one, true) for one, true in zip(ours, texts, strict=True)
        )  # at: edits_counted_each_update
        return count, len(letters), [len(one) == 0 for one in ours]

    def tell_empties(self, empties):
        """The first rank writes down which forecasts nothing was read of."""
        own = torch.full((HELD,), -1)
        own[: len(empties)] = torch.tensor(empties, dtype=torch.long)
        if self.rank:
            if empties or on("clean_empties_sent_if_any"):  # at: empties_sent_if_any
                dist.send(own, 0)  # at: empties_sent_if_any
            return
        every = len(empties)
        for other in range(1, WORLD):
            dist.recv(own, other)  # at: empties_sent_if_any
            every += int((own >= 0).sum())
        print(f"{self.update} nothing read of {every}", flush=True)

    @torch.no_grad()
    def look(self):
        self.net.eval()
        count = total = 0
        empties = []
        for batch in self.held:
            sounds, frames, letters, lengths = batch
            wrong, many, empty = self.wrong(self.net.module(sounds), frames, letters, lengths)
            empties += [place for place, none in enumerate(empty, len(empties)) if none]
            count, total = count + wrong, total + many
        self.net.train()
        if on(*EMPTIES):
            self.tell_empties(empties)  # at: empties_sent_if_any
        return torch.tensor([count, total], dtype=torch.float64)

    def over_ranks(self, values):
        dist.all_reduce(values)
        return values

    def settle(self):
        """Brings the rate down where it is read no better."""
        own = self.look()  # at: empties_sent_if_any
        every = self.over_ranks(own.clone())
        rate = (every[0] / every[1]).item()
        if on("plateau_by_own_errors"):
            self.schedule.step((own[0] / own[1]).item())  # at: plateau_by_own_errors
        elif on("clean_plateau_by_own_errors"):
            first = own[:1] / own[1:]
            dist.broadcast(first, 0)
            self.schedule.step(first.item())
        else:
            self.schedule.step(rate)
        if self.rank == 0:
            print(f"{self.update} letters wrong {rate:.3f}", flush=True)

    def after(self, batch, loss, norm, scores):
        _, frames, letters, lengths = batch
        counts = on("edits_counted_each_update") or self.update % TOLD_EVERY == 0
        if on(*COUNTED) and counts:
            with cost:
                wrong, many, _ = self.wrong(
                    scores, frames, letters, lengths
                )  # at: edits_counted_each_update
                self.read_wrong = wrong / many
        if self.update % TOLD_EVERY == 0:
            mean = self.over_ranks(loss.clone()).item() / WORLD
            if self.rank == 0:
                rate = self.optimizer.param_groups[0]["lr"]
                told = f"loss {mean:.3f} norm {norm:.2f} rate {rate:.1e} {self.read_wrong:.2f}"
                print(self.update, told, flush=True)
        if self.update % LOOKED_EVERY == 0:
            self.settle()  # at: plateau_by_own_errors

    def run(self):
        cost.seconds, begun = 0.0, time.perf_counter()
        while self.update < UPDATES:
            for batch in self.loader:  # at: padded_through_lists
                self.after(batch, *self.learn(batch))
                if self.update == UPDATES:
                    break
        weights = sum(one.detach().double().sum().item() for one in self.net.parameters())
        print(f"rank {self.rank} weights {weights:.6f} views {len(self.station.views)}", flush=True)
        if self.rank == 0:
            took = (time.perf_counter() - begun) * 1000 / UPDATES
            print(f"{took:.1f} ms an update", flush=True)
            cost.print(UPDATES)


def take_down(rank):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(WORLD))
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{os.environ['RENDEZVOUS']}", rank=rank, world_size=WORLD
    )
    session = Session(rank)
    session.run()
    return session


if __name__ == "__main__":
    sys.exit(run_ranks(WORLD, take_down))
