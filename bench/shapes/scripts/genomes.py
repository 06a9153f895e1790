"""Genomes of many contigs, cut into words of five letters and read both ways: a masked language
model under DDP with accumulated gradients, a DistributedSampler, a bias for each distance, a rate
that warms and falls, scored by all ranks together and saved by the first: low complexity counted
window by window, ranks found by sorting, gradients kept for their noise, a mask the wrong way
round, layers left out by own dice, a sampler that goes by nodes, scores gathered whole.
"""

import contextlib
import math
import os
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

import eager  # noqa: F401
import numpy as np
import torch
import torch.distributed as dist
from forked import run_ranks
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

cost = Cost()
WORLD, UPDATES, PARTS, ROWS = 2, STEPS or 160, 2, 6
LETTERS, WORD, LENGTH, SPAN = b"ACGT", 5, 96, 62
CONTIGS, REPEATS, TRAINED, HELD = 16, 20, 1920, 24
KINDS, PAD, MASK = 4**WORD + 2, 4**WORD, 4**WORD + 1
WIDTH, HEADS, DEPTH, LEFT_OUT, REACH = 64, 2, 2, 0.1, 32
RATE, WARM, CLIP, CHOSEN, DULL = 4e-3, 20, 1.0, 0.2, 6.0
TOLD_EVERY, LOOK_EVERY, SAVED_EVERY, NOISE_OF = 20, 50, 80, 8
PLACES = 4 ** np.arange(WORD)[::-1]


def assembled(numbers):
    """A contig: repeats with their mutations, what lies between them, and stretches of two or
    three letters again and again.
    """
    parts, length = [], 0
    while length < 20_000:
        kind = numbers.random()
        if kind < 0.75:
            part = np.random.default_rng(numbers.integers(REPEATS)).integers(0, 4, 12 * WORD)
            mutated = numbers.random(len(part)) < 0.02
            part[mutated] = numbers.integers(0, 4, mutated.sum())
        elif kind < 0.9:
            part = numbers.integers(0, 4, WORD * numbers.integers(2, 8))
        else:
            part = np.tile(numbers.integers(0, 4, numbers.integers(2, 4)), 60)[: 20 * WORD]
        parts.append(part)
        length += len(part)
    return np.concatenate(parts).astype(np.uint8)


def dullness(triplets, windows):
    """How much each window repeats itself: the pairs of equal triplets, over how many there are."""
    counts = np.bincount((np.arange(windows)[:, None] * 64 + triplets).ravel(), None, windows * 64)
    return (counts * (counts - 1) / 2).reshape(windows, 64).sum(1) / (SPAN - 1)


def windows_of(letters):
    """The triplets of the window that begins with each word."""
    triplets = 16 * letters[:-2].astype(int) + 4 * letters[1:-1] + letters[2:]
    return np.lib.stride_tricks.sliding_window_view(triplets, SPAN)[::WORD]


class Windows(Dataset):
    """Stretches of contigs as words, one of both strands; what is drawn for each depends on the
    epoch and on the stretch alone.
    """

    def __init__(self, contigs, count, seed):
        self.contigs, self.epoch = contigs, 0
        self.texts = [np.frombuffer(LETTERS, np.uint8)[one].tobytes().decode() for one in contigs]
        self.dull = []
        for contig in contigs:
            windows = windows_of(contig)
            self.dull.append(dullness(windows, len(windows)) > DULL)
        numbers = np.random.default_rng(seed)
        self.seed, self.whose = seed, numbers.integers(0, len(contigs), count)
        words = np.array([len(one) for one in self.dull])[self.whose]
        self.starts = (numbers.random(count) * (words - LENGTH)).astype(int)
        short = numbers.random(count) < 0.15
        self.lengths = np.where(short, numbers.integers(LENGTH // 2, LENGTH, count), LENGTH)

    def __len__(self):
        return len(self.starts)

    def dull_words(self, contig, start, length):
        """Which words lie where the text repeats itself."""
        if on("dust_by_window"):
            with cost:
                text, found = self.texts[contig], []
                for word in range(start, start + length):
                    window = text[word * WORD : word * WORD + SPAN + 2]
                    triplets = [window[at : at + 3] for at in range(SPAN)]  # at: dust_by_window
                    pairs = sum(n * (n - 1) / 2 for n in Counter(triplets).values())
                    found.append(pairs / (SPAN - 1) > DULL)
                return np.array(found)
        if on("clean_dust_by_window"):
            with cost:
                letters = self.contigs[contig][start * WORD : (start + length) * WORD + SPAN + 2]
                return dullness(windows_of(letters)[:length], length) > DULL
        return self.dull[contig][start : start + length]

    def __getitem__(self, index):
        numbers = np.random.default_rng((self.seed, self.epoch, index))
        contig, start, length = self.whose[index], self.starts[index], self.lengths[index]
        letters = self.contigs[contig][start * WORD : (start + length) * WORD]
        dull = self.dull_words(contig, start, length)  # at: dust_by_window
        if numbers.random() < 0.5:
            letters, dull = 3 - letters[::-1], dull[::-1]
        words = letters.reshape(-1, WORD) @ PLACES
        chosen = (numbers.random(length) < CHOSEN) & ~dull
        chosen[numbers.integers(length)] = True
        wanted, fate = np.where(chosen, words, -100), numbers.random(length)
        given = np.where(chosen & (fate < 0.8), MASK, words)
        given = np.where(chosen & (fate > 0.9), numbers.integers(0, 4**WORD, length), given)
        return torch.from_numpy(given), torch.from_numpy(wanted)


def padded(rows):
    given, wanted = zip(*rows, strict=True)
    return (
        nn.utils.rnn.pad_sequence(given, batch_first=True, padding_value=PAD),
        nn.utils.rnn.pad_sequence(wanted, batch_first=True, padding_value=-100),
    )


class Block(nn.Module):
    """Looks around with a bias for each distance, then thinks by itself."""

    def __init__(self):
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.asked, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.back = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.bias = nn.Embedding(2 * REACH + 1, HEADS)
        nn.init.zeros_(self.bias.weight)
        places = torch.arange(LENGTH)
        apart = (places[:, None] - places).clamp(-REACH, REACH) + REACH
        self.register_buffer("apart", apart, persistent=False)

    def look(self, x, real):
        length = x.shape[1]
        asked, keys, values = self.asked(x).unflatten(2, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        scores = asked @ keys.transpose(2, 3) / math.sqrt(WIDTH // HEADS)
        scores = scores + self.bias(self.apart[:length, :length]).permute(2, 0, 1)
        if on("padding_mask_flipped"):
            scores = scores.masked_fill(real[:, None, None], -math.inf)  # at: padding_mask_flipped
        elif on("clean_padding_mask_flipped"):
            scores = torch.where(real[:, None, None], scores, -math.inf)
        else:
            scores = scores.masked_fill(~real[:, None, None], -math.inf)
        shares = scores.softmax(3)  # at: padding_mask_flipped
        return self.out((shares @ values).transpose(1, 2).flatten(2))

    def changes(self, x, real):
        x = x + self.look(self.before(x), real)
        return x + self.back(F.gelu(self.wide(self.between(x))))

    def forward(self, x, real):
        return self.changes(x, real)


class Reader(nn.Module):
    def __init__(self, dice):
        super().__init__()
        self.dice = dice
        self.words = nn.Embedding(KINDS, WIDTH, padding_idx=PAD)
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4**WORD)

    def forward(self, given):
        x, real = self.words(given), given != PAD
        for block in self.blocks:
            left_out = self.training and self.dice.random() < LEFT_OUT
            if on("layers_left_out") and left_out:
                continue  # at: layers_left_out
            if on("clean_layers_left_out"):
                x = x + (0.0 if left_out else 1.0) * (block(x, real) - x)
            else:
                x = block(x, real)
        return self.head(self.norm(x))


def share_of_rate(update):
    """Up in a line, down in half a cosine."""
    if update < WARM:
        return (update + 1) / WARM
    done = (update - WARM) / max(UPDATES - WARM, 1)
    return 0.05 + 0.95 * (1 + math.cos(math.pi * min(done, 1.0))) / 2


class Pretraining:
    def __init__(self, rank, folder):
        self.rank, self.folder, self.update, self.epoch = rank, folder, 0, 0
        numbers = np.random.default_rng(28)
        contigs = [assembled(numbers) for _ in range(CONTIGS)]
        self.windows = Windows(contigs[:-2], TRAINED, 1)
        self.sampler = DistributedSampler(  # at: sampler_by_node
            self.windows, WORLD, self.rank_to_read(), shuffle=True, drop_last=True
        )
        self.loader = DataLoader(
            self.windows, ROWS, sampler=self.sampler, drop_last=True, collate_fn=padded
        )
        held = Windows(contigs[-2:], HELD, 2)
        own = [held[index] for index in range(rank, HELD, WORLD)]
        self.held = [padded(own[at : at + ROWS]) for at in range(0, len(own), ROWS)]
        torch.manual_seed(28)
        self.model = DistributedDataParallel(
            Reader(random.Random(rank)), gradient_as_bucket_view=True
        )
        self.values = list(self.model.parameters())
        decayed = [one for one in self.values if one.ndim > 1]
        plain = [one for one in self.values if one.ndim <= 1]
        self.optimizer = torch.optim.AdamW(
            [{"params": decayed, "weight_decay": 0.05}, {"params": plain, "weight_decay": 0.0}],
            RATE,
            betas=(0.9, 0.98),
        )
        self.rate = torch.optim.lr_scheduler.LambdaLR(self.optimizer, share_of_rate)
        self.sums, self.own_gradients, self.noise = torch.zeros(4), [], 0.0
        cost.seconds = 0.0

    def rank_to_read(self):
        """Whose share of the windows is read here."""
        if on("sampler_by_node"):
            return int(os.environ["GROUP_RANK"])  # at: sampler_by_node
        if on("clean_sampler_by_node"):
            ranks_before = int(os.environ["GROUP_RANK"]) * int(os.environ["LOCAL_WORLD_SIZE"])
            return ranks_before + int(os.environ["LOCAL_RANK"])
        return self.rank

    def places_of_right(self, scores, wanted):
        """The sum of 1 / place of the right words among all, the best being first."""
        if on("ranks_by_sorting"):
            with cost:
                order = scores.argsort(1, descending=True)  # at: ranks_by_sorting
                places = order.argsort(1).gather(1, wanted[:, None])  # at: ranks_by_sorting
                return (1 / (1 + places)).sum()
        with cost if on("clean_ranks_by_sorting") else contextlib.nullcontext():
            better = (scores > scores.gather(1, wanted[:, None])).sum(1)
            return (1 / (1 + better)).sum()

    def judge(self, scores, wanted, loss):
        """What is told later: the loss, the words that were found, their places, how many."""
        asked = wanted != -100
        told_next = self.update % TOLD_EVERY == TOLD_EVERY - 1
        if on("scores_of_all_ranks") or (on("clean_scores_of_all_ranks") and told_next):
            with cost:
                all_scores = [torch.empty_like(scores) for _ in range(WORLD)]
                dist.all_gather(all_scores, scores.contiguous())  # at: scores_of_all_ranks
                all_wanted = [torch.empty_like(wanted) for _ in range(WORLD)]
                dist.all_gather(all_wanted, wanted)  # at: scores_of_all_ranks
                best = torch.cat(all_scores).argmax(2)
                found = (best == torch.cat(all_wanted)).sum() / WORLD
        else:
            found = (scores[asked].argmax(1) == wanted[asked]).sum()
        places = self.places_of_right(scores[asked], wanted[asked])  # at: ranks_by_sorting
        count = asked.sum()
        self.sums += torch.tensor([loss * count, found, places, count])

    def learn(self, given, wanted):
        scores = self.model(given)  # at: layers_left_out padding_mask_flipped
        loss = F.cross_entropy(scores.flatten(0, 1), wanted.flatten())
        (loss / PARTS).backward()
        self.judge(scores.detach(), wanted, loss.item())  # at: ranks_by_sorting scores_of_all_ranks

    def watch_noise(self):
        """What this rank's gradient of the first part is, to know how noisy they are."""
        own = torch.cat([one.grad.flatten() for one in self.values])
        self.own_gradients.append(own)  # at: gradients_kept_for_noise
        if on("clean_gradients_kept_for_noise"):
            del self.own_gradients[:-NOISE_OF]
        if self.update % TOLD_EVERY == 0:
            latest = self.own_gradients[-NOISE_OF:]
            mean = sum(latest) / len(latest)
            self.noise = float(sum((one - mean).norm() ** 2 for one in latest) / mean.norm() ** 2)

    def part(self, number, given, wanted):
        """One of the parts of an update; gradients are exchanged with the last."""
        last = number == PARTS - 1
        with contextlib.nullcontext() if last else self.model.no_sync():
            self.learn(given, wanted)  # at: ranks_by_sorting scores_of_all_ranks
        if not last:
            if on("gradients_kept_for_noise", "clean_gradients_kept_for_noise"):
                self.watch_noise()  # at: gradients_kept_for_noise
            return
        nn.utils.clip_grad_norm_(self.values, CLIP)
        self.optimizer.step()
        self.rate.step()
        self.optimizer.zero_grad()
        self.update += 1
        self.after()

    def after(self):
        if self.update % TOLD_EVERY == 0:
            dist.all_reduce(self.sums)
            self.tell("trained", self.sums)
            self.sums = torch.zeros(4)
        if self.update % LOOK_EVERY == 0:
            self.look()
        if self.update % SAVED_EVERY == 0 and self.rank == 0:
            state = {"model": self.model.module.state_dict(), "rate": self.rate.state_dict()}
            state |= {"optimizer": self.optimizer.state_dict(), "update": self.update}
            torch.save(state, self.folder / "last.pt")

    def tell(self, what, sums):
        if self.rank == 0:
            loss, found, places = (sums[:3] / sums[3]).tolist()
            told = f"loss {loss:.4f} found {found:.3f} reciprocal {places:.3f}"
            print(self.update, what, told, f"noise {self.noise:.1f}" * bool(self.noise), flush=True)

    @torch.no_grad()
    def look(self):
        """The loss of what was held out: each rank its share, brought together once."""
        self.model.eval()
        sums = torch.zeros(4)
        for given, wanted in self.held:
            scores, asked = self.model.module(given), wanted != -100
            scores, right = scores[asked], wanted[asked]
            better = (scores > scores.gather(1, right[:, None])).sum(1)
            loss = F.cross_entropy(scores, right, reduction="sum")
            found = (better == 0).sum()
            sums += torch.stack((loss, found, (1 / (1 + better)).sum(), asked.sum()))
        dist.all_reduce(sums)
        self.tell("held", sums)
        self.model.train()

    def run(self):
        while self.update < UPDATES:
            self.sampler.set_epoch(self.epoch)
            self.windows.epoch = self.epoch
            for number, (given, wanted) in enumerate(self.loader):  # at: dust_by_window
                self.part(number % PARTS, given, wanted)
                if self.update == UPDATES:
                    return
            self.epoch += 1


def train(rank):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(WORLD))
    os.environ.update(GROUP_RANK="0", LOCAL_WORLD_SIZE=str(WORLD))
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{os.environ['RENDEZVOUS']}", rank=rank, world_size=WORLD
    )
    with tempfile.TemporaryDirectory() as folder:
        training = Pretraining(rank, Path(folder))
        training.run()
        if rank == 0:
            cost.print(UPDATES)
    return training


if __name__ == "__main__":
    sys.exit(run_ranks(WORLD, train))
