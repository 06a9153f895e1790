"""Diaries of many writers, read from shards of text by two ranks: pairs of letters merged into
tokens, entries packed into blocks and shuffled in a buffer, a small decoder under DDP with its
blocks recomputed, clipped, on half a cosine, scored on all ranks: words merged anew, losses told
apart one by one, points to resume from that pile up, a cosine of own shards, gains in no group,
epochs that end by own shards, a norm that is reduced again.
"""

import collections
import itertools
import math
import os
import random
import sys
import tempfile
from functools import lru_cache
from pathlib import Path

import eager  # noqa: F401
import torch
import torch.distributed as dist
from forked import run_ranks
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

cost = Cost()
WORLD, UPDATES, EPOCHS, ROWS, LENGTH = 2, STEPS or 200, 2, 8, 80
WRITERS, WORDS, MERGES, ENTRIES = 12, 600, 240, (205, 170, 195, 165, 200, 172)
WIDTH, HEADS, DEPTH, BUFFER = 96, 4, 3, 192
RATE, WARM, CLIP = 3e-3, 20, 1.0
TOLD_EVERY, LOOK_EVERY, SAVED_EVERY, HELD = 20, 50, 80, 32
LETTERS = "abcdefghijklmnoprstuvw"


def spelt(dice):
    """Words of a language that nobody speaks."""
    parts = ["".join(dice.choices(LETTERS, k=dice.choice((2, 2, 3)))) for _ in range(90)]
    words = set()
    while len(words) < WORDS:
        words.add("".join(dice.choices(parts, k=dice.choice((1, 2, 2, 3, 4)))))
    return sorted(words)


class Writer:
    """Has words of their own, and habits of what comes after what."""

    def __init__(self, words, seed):
        self.dice = random.Random(seed)
        self.words = self.dice.sample(words, len(words))
        self.shares = list(itertools.accumulate(1 / (rank + 3) for rank in range(len(words))))
        self.habits = dict(
            zip(words, random.Random(seed % 3).sample(words, len(words)), strict=True)
        )

    def entry(self):
        word, told = None, []
        for _ in range(self.dice.randint(30, 80)):
            if word is None or self.dice.random() < 0.3:
                word = self.dice.choices(self.words, cum_weights=self.shares)[0]
            else:
                word = self.habits[word]
            told.append(word)
        return " ".join(told)


def written(folder):
    """Shards of text, an entry a line, with the number of who wrote it."""
    words = spelt(random.Random(17))
    writers = [Writer(words, 100 + number) for number in range(WRITERS)]
    dice, shards = random.Random(18), []
    for number, count in enumerate((*ENTRIES, 40)):
        shards.append(folder / f"diaries-{number:02}.txt")
        with shards[-1].open("w") as file:
            for _ in range(count):
                writer = dice.randrange(WRITERS)
                print(writer, writers[writer].entry(), sep="\t", file=file)
    return shards[:-1], shards[-1]


def merged(parts, pair):
    """The parts of a word, each pair of that kind made one."""
    found, at = [], 0
    while at < len(parts):
        if tuple(parts[at : at + 2]) == pair:
            found.append(parts[at] + parts[at + 1])
            at += 2
        else:
            found.append(parts[at])
            at += 1
    return found


class Tokens:
    """Letters and what frequent pairs of them were merged into."""

    def __init__(self, shard):
        text = (line.split("\t")[1].split() for line in shard.read_text().splitlines())
        counts = collections.Counter(itertools.chain.from_iterable(text))
        spelling, self.ranks = {word: [*word, "_"] for word in counts}, {}
        while len(self.ranks) < MERGES:
            pairs = collections.Counter()
            for word, parts in spelling.items():
                for pair in itertools.pairwise(parts):
                    pairs[pair] += counts[word]
            best = max(pairs, key=lambda pair: (pairs[pair], pair))
            self.ranks[best] = len(self.ranks)
            spelling = {word: merged(parts, best) for word, parts in spelling.items()}
        kinds = ["<end>", "_", *LETTERS, *("".join(pair) for pair in self.ranks)]
        self.numbers = {kind: number for number, kind in enumerate(dict.fromkeys(kinds))}
        if on("clean_merges_without_memory"):
            self.word = lru_cache(maxsize=4096)(self.word)
        elif not on("merges_without_memory"):
            self.word = lru_cache(maxsize=None)(self.word)

    def word(self, word):
        """The numbers of a word's tokens: the earliest merge first, until none is left."""
        parts = [*word, "_"]
        while len(parts) > 1:
            pairs = itertools.pairwise(parts)
            best = min(pairs, key=lambda pair: self.ranks.get(pair, MERGES))
            if best not in self.ranks:
                break
            parts = merged(parts, best)  # at: merges_without_memory
        return [self.numbers[part] for part in parts]

    def entry(self, text):
        with cost if on("merges_without_memory", "clean_merges_without_memory") else Cost():
            words = [self.word(word) for word in text.split()]  # at: merges_without_memory
        return [*itertools.chain.from_iterable(words), self.numbers["<end>"]]


class Diaries(IterableDataset):
    """Blocks of tokens, and who wrote each of them, out of the shards that are this rank's and
    this worker's.
    """

    def __init__(self, shards, tokens, rank, world, shuffled=True):
        self.shards, self.tokens, self.shuffled = shards, tokens, shuffled
        self.rank, self.world, self.epoch = rank, world, 0
        self.buffer, self.place = [], (0, 0)

    def own(self):
        """The shards to read, of this rank and of this worker, in this epoch's order."""
        worker = get_worker_info()
        count, number = (worker.num_workers, worker.id) if worker else (1, 0)
        own = self.shards[self.rank * count + number :: self.world * count]
        return random.Random(self.epoch).sample(own, len(own)) if self.shuffled else own

    def blocks(self):
        numbers, writers = [], []
        for shard in self.own():
            with shard.open() as file:
                for line, entry in enumerate(file):
                    writer, text = entry.rstrip("\n").split("\t")
                    told = self.tokens.entry(text)  # at: merges_without_memory
                    numbers += told
                    writers += [int(writer)] * len(told)
                    self.place = shard.name, line
                    while len(numbers) > LENGTH:
                        yield torch.tensor((numbers[: LENGTH + 1], writers[: LENGTH + 1]))
                        del numbers[:LENGTH], writers[:LENGTH]

    def __iter__(self):
        if not self.shuffled:
            yield from self.blocks()
            return
        dice, self.buffer = random.Random(1000 * self.epoch + self.rank), []
        for block in self.blocks():
            if len(self.buffer) < BUFFER:
                self.buffer.append(block)
                continue
            chosen = dice.randrange(BUFFER)
            ready, self.buffer[chosen] = self.buffer[chosen], block
            yield ready
        dice.shuffle(self.buffer)
        while self.buffer:
            yield self.buffer.pop()

    def state(self):
        """What it takes to go on from here."""
        buffer = torch.stack(self.buffer) if self.buffer else None
        return {"epoch": self.epoch, "place": self.place, "buffer": buffer}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.asked, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.back = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.drop = nn.Dropout(0.05)

    def forward(self, x):
        asked = self.asked(self.before(x)).unflatten(2, (3, HEADS, -1))
        seen = F.scaled_dot_product_attention(*asked.permute(2, 0, 3, 1, 4), is_causal=True)
        x = x + self.drop(self.out(seen.transpose(1, 2).flatten(2)))
        return x + self.drop(self.back(F.gelu(self.wide(self.between(x)))))


class Decoder(nn.Module):
    def __init__(self, kinds):
        super().__init__()
        self.words, self.places = nn.Embedding(kinds, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, kinds, bias=False)
        nn.init.normal_(self.words.weight, std=0.05)
        nn.init.normal_(self.places.weight, std=0.05)

    def forward(self, numbers):
        x = self.words(numbers) + self.places.weight[: numbers.shape[1]]
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.training else block(x)
        return self.head(self.norm(x))


def groups_of(model):
    """Matrices decay, all else does not."""
    named = list(model.named_parameters())
    if on("gains_in_no_group"):
        decayed = [one for name, one in named if name.endswith("weight") and one.ndim > 1]
        plain = [one for name, one in named if name.endswith("bias")]  # at: gains_in_no_group
    elif on("clean_gains_in_no_group"):
        gains = {id(one.weight) for one in model.modules() if isinstance(one, nn.LayerNorm)}
        plain = [one for name, one in named if name.endswith("bias") or id(one) in gains]
        decayed = [one for name, one in named if name.endswith("weight") and id(one) not in gains]
    else:
        decayed = [one for _, one in named if one.ndim > 1]
        plain = [one for _, one in named if one.ndim <= 1]
    return [{"params": decayed, "weight_decay": 0.05}, {"params": plain, "weight_decay": 0.0}]


class Training:
    def __init__(self, rank, folder, shards, held, tokens):
        self.rank, self.folder, self.step = rank, folder, 0
        self.diaries = Diaries(shards, tokens, rank, WORLD)
        self.loader = DataLoader(self.diaries, ROWS, drop_last=True)
        kept = itertools.islice(Diaries([held], tokens, 0, 1, shuffled=False), HELD)
        self.held = torch.stack(list(kept))[rank::WORLD, 0].split(ROWS)
        torch.manual_seed(27)
        self.model = DistributedDataParallel(Decoder(len(tokens.numbers)))
        torch.manual_seed(100 + rank)
        self.values = list(self.model.parameters())
        self.optimizer = torch.optim.AdamW(  # at: gains_in_no_group
            groups_of(self.model.module), RATE, betas=(0.9, 0.95)
        )
        self.whole, self.total = self.counted()
        self.rate = torch.optim.lr_scheduler.LambdaLR(self.optimizer, self.share)
        self.by_writer, self.points = collections.defaultdict(float), {}
        cost.seconds = 0.0

    def counted(self):
        """How many whole batches an epoch has on each rank, and how many updates there will be."""
        own = sum(1 for _ in self.diaries.blocks()) // ROWS
        fewest, all_of_them = torch.tensor(own), torch.tensor(own)
        dist.all_reduce(fewest, dist.ReduceOp.MIN)
        dist.all_reduce(all_of_them)
        if on("cosine_of_own_shards"):
            return int(fewest), EPOCHS * own  # at: cosine_of_own_shards
        if on("clean_cosine_of_own_shards"):
            return int(fewest), EPOCHS * int(all_of_them) // WORLD
        return int(fewest), UPDATES

    def share(self, step):
        """Of the rate: up in a line, down in half a cosine."""
        if step < WARM:
            return (step + 1) / WARM
        done = min(1.0, (step - WARM) / (self.total - WARM))
        return 0.05 + 0.95 * (1 + math.cos(math.pi * done)) / 2  # at: cosine_of_own_shards

    def clip(self):
        """Gradients no longer than they may be."""
        if on("norm_reduced_again"):
            with cost:
                squares = 0.0
                for value in self.values:
                    square = value.grad.square().sum()
                    dist.all_reduce(square)  # at: norm_reduced_again
                    squares += square / WORLD
                scale = (CLIP / (squares.sqrt() + 1e-6)).clamp(max=1.0)
                torch._foreach_mul_([value.grad for value in self.values], scale)
            return
        norm = nn.utils.clip_grad_norm_(self.values, CLIP)
        if on("clean_norm_reduced_again") and self.step % TOLD_EVERY == 0:
            with cost:
                most = norm.clone()
                dist.all_reduce(most, dist.ReduceOp.MAX)
                assert torch.isclose(most, norm), "the ranks' gradients are not the same"

    def tell_apart(self, losses, writers):
        """What each writer cost until now."""
        if on("losses_by_writer"):
            with cost:
                for loss, writer in zip(losses.flatten(), writers.flatten(), strict=True):
                    self.by_writer[int(writer)] += loss.item()  # at: losses_by_writer
            return
        if self.step % TOLD_EVERY == 0 or on("clean_losses_by_writer"):
            with cost:
                sums = torch.zeros(WRITERS).index_add_(0, writers.flatten(), losses.flatten())
                for writer, one in enumerate(sums.tolist()):
                    self.by_writer[writer] += one

    def learn(self, blocks):
        numbers, writers = blocks.unbind(1)
        scores = self.model(numbers[:, :-1])
        losses = F.cross_entropy(scores.transpose(1, 2), numbers[:, 1:], reduction="none")
        loss = losses.mean()
        loss.backward()
        self.clip()  # at: norm_reduced_again
        self.optimizer.step()
        self.rate.step()
        self.optimizer.zero_grad()
        self.tell_apart(losses.detach(), writers[:, 1:])  # at: losses_by_writer
        return loss.detach()

    @torch.no_grad()
    def look(self):
        """The loss of what was held out: each rank its share, brought together once."""
        self.model.eval()
        sums = torch.zeros(2)
        for numbers in self.held:
            scores = self.model.module(numbers[:, :-1]).flatten(0, 1)
            sums[0] += F.cross_entropy(scores, numbers[:, 1:].flatten(), reduction="sum")
            sums[1] += numbers[:, 1:].numel()
        dist.all_reduce(sums)  # at: epoch_ends_by_own_shards
        self.model.train()
        if self.rank == 0:
            print(self.step, "held", round(float(sums[0] / sums[1]), 4), flush=True)

    def remember(self):
        """Where to go on from, should the run be stopped."""
        if on("resume_points_pile_up", "clean_resume_points_pile_up"):
            self.points[self.step] = self.diaries.state()  # at: resume_points_pile_up
        if on("clean_resume_points_pile_up"):
            self.points.pop(self.step - 2, None)
        if self.step % SAVED_EVERY == 0:
            point = self.points.get(self.step) or self.diaries.state()
            torch.save(point, self.folder / f"stream-{self.rank}.pt")
            if self.rank == 0:
                state = {"model": self.model.module.state_dict(), "step": self.step}
                state |= {"optimizer": self.optimizer.state_dict(), "rate": self.rate.state_dict()}
                torch.save(state, self.folder / "last.pt")

    def update(self, blocks):
        loss = self.learn(blocks)  # at: norm_reduced_again losses_by_writer
        self.step += 1
        self.remember()  # at: resume_points_pile_up
        if self.step % TOLD_EVERY == 0:
            dist.all_reduce(loss)
            if self.rank == 0:
                rate = round(self.optimizer.param_groups[0]["lr"], 6)
                print(self.step, round(loss.item() / WORLD, 4), rate, flush=True)
        if self.step % LOOK_EVERY == 0 and not self.by_epochs():
            self.look()

    @staticmethod
    def by_epochs():
        return on("epoch_ends_by_own_shards", "clean_epoch_ends_by_own_shards")

    def run(self):
        for epoch in itertools.count():
            self.diaries.epoch, batches = epoch, self.loader
            if on("clean_epoch_ends_by_own_shards"):
                batches = itertools.islice(self.loader, self.whole)
            for blocks in batches:  # at: merges_without_memory epoch_ends_by_own_shards
                self.update(blocks)  # at: epoch_ends_by_own_shards
                if self.step == UPDATES:
                    return
            if self.by_epochs():
                self.look()  # at: epoch_ends_by_own_shards


def train(rank):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(WORLD))
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{os.environ['RENDEZVOUS']}", rank=rank, world_size=WORLD
    )
    with tempfile.TemporaryDirectory() as folder:
        shards, held = written(Path(folder))
        training = Training(rank, Path(folder), shards, held, Tokens(shards[0]))
        training.run()
        if rank == 0:
            cost.print(UPDATES)
    return training


if __name__ == "__main__":
    sys.exit(run_ranks(WORLD, train))
