"""Ships' logbooks, a small GPT over shards of tokens under accelerate: an endless stream by two
workers, entries packed into blocks that do not see each other, gradients of two parts summed, a
rate that warms and falls: shards dealt to processes but not to workers, edits counted word by word,
masks remembered by where entries end, gradients cleared ahead of each backward, a rate that falls
with each part, held pages read each fourth step, a shard shorter than a block.
"""

import itertools
import math
import random
import tempfile
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator, DataLoaderConfiguration
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

cost = Cost()
SHARDS, ENTRIES, TAIL, BLOCK, ROWS, PARTS = 12, 420, 60, 96, 8, 2
WIDTH, LAYERS, HEADS, RATE, WARM, CLIP = 64, 2, 4, 2e-3, 20, 1.0
HELD_ROWS, TOLD_EVERY, TRIED_EVERY, SEED, REMEMBERED, READ = 96, 50, 80, 29, 64, 4

WINDS = ("north", "east", "south", "west", "northeast", "southeast", "southwest", "northwest")
FORCES = ("calm", "light airs", "gentle breeze", "fresh breeze", "strong gale", "whole gale")
SEAS = ("smooth", "slight", "moderate", "rough", "high", "confused")
SIGHTED = (
    "a whale",
    "two sails",
    "the land",
    "driftwood",
    "a wreck",
    "ice",
    "porpoises",
    "nothing",
)
WORK = ("set the topsails", "pumped the hold", "mended the jib", "washed the deck", "took a reef")
HANDS = ("the mate", "the cook", "the boatswain", "all hands", "the second watch", "the carpenter")
MOODS = ("in good health", "sick with fever", "short of water", "weary", "merry", "mutinous")


def entry(dice):
    """A day at sea; the weather goes with the work."""
    force = dice.randrange(len(FORCES))
    words = f"day {dice.randrange(1, 200)} wind {dice.choice(WINDS)} {FORCES[force]}"
    words += f" sea {SEAS[min(force + dice.randrange(2), len(SEAS) - 1)]}"
    words += f" lat {dice.randrange(60)} lon {dice.randrange(180)}"
    if dice.random() < 0.6:
        words += f" {dice.choice(HANDS)} {WORK[(force + dice.randrange(2)) % len(WORK)]}"
    if dice.random() < 0.5:
        words += f" sighted {dice.choice(SIGHTED)}"
    if dice.random() < 0.4:
        words += f" crew {dice.choice(MOODS)}"
    return words.split()


def written(folder):
    """Shards of whole numbers, one after the other; how many words there are, and held rows."""
    dice = random.Random(SEED)
    lines = [entry(dice) for _ in range(SHARDS * ENTRIES)]
    places = {word: place for place, word in enumerate(sorted(set(itertools.chain(*lines))), 1)}
    ids = np.array([number for line in lines for number in [*map(places.get, line), 0]], np.uint16)
    held, ids = np.split(ids, [HELD_ROWS * (BLOCK + 1)])
    size = (len(ids) - TAIL) // SHARDS
    ends = [size * number for number in range(1, SHARDS + 1)]
    *shards, tail = np.split(ids[: ends[-1] + TAIL], ends)
    if on("tail_shorter_than_block", "clean_tail_shorter_than_block"):
        shards.append(tail)  # at: tail_shorter_than_block
    for number, shard in enumerate(shards):
        np.save(folder / f"shard{number:03d}.npy", shard)
    return len(places) + 1, torch.from_numpy(held.astype(np.int64)).view(HELD_ROWS, BLOCK + 1)


class Pages(IterableDataset):
    """Blocks of the shards that fall to this process and this worker, without end."""

    def __init__(self, folder, process, processes):
        self.paths = sorted(folder.glob("*.npy"))
        self.process, self.processes = process, processes
        self.by_process = on("shards_dealt_to_processes", "clean_shards_dealt_to_processes")

    def own(self, paths):
        place, of = self.process, self.processes
        info = get_worker_info()
        if info is not None and not self.by_process:
            place, of = place * info.num_workers + info.id, of * info.num_workers
        return paths[place::of]  # at: shards_dealt_to_processes

    def __iter__(self):
        info, rows = get_worker_info(), self.rows()
        if on("clean_shards_dealt_to_processes"):
            rows = itertools.islice(rows, info.id, None, info.num_workers)
        return rows

    def rows(self):
        for turn in itertools.count():
            numbers = np.random.default_rng([SEED, turn])
            shuffled = [self.paths[place] for place in numbers.permutation(len(self.paths))]
            for path in self.own(shuffled):  # at: shards_dealt_to_processes
                shard = np.load(path, mmap_mode="r")
                if on("clean_tail_shorter_than_block") and len(shard) <= 2 * BLOCK:
                    continue
                start = numbers.integers(
                    0, min(BLOCK, len(shard) - BLOCK)
                )  # at: tail_shorter_than_block
                for begin in numbers.permutation(np.arange(start, len(shard) - BLOCK, BLOCK)):
                    yield torch.from_numpy(shard[begin : begin + BLOCK + 1].astype(np.int64))


class Masks:
    """Each word sees those before it of its own entry."""

    def __init__(self):
        self.causal = torch.ones(BLOCK, BLOCK, dtype=torch.bool).tril()
        self.known = {}

    def of_row(self, entries):
        seen = (entries[:, None] == entries) & self.causal
        return torch.zeros(BLOCK, BLOCK).masked_fill(~seen, -math.inf)

    def looked_up(self, ids, entries):
        ends = tuple((ids == 0).nonzero()[:, 0].tolist())
        if ends not in self.known:
            if on("clean_masks_remembered_by_text") and len(self.known) >= REMEMBERED:
                self.known.pop(next(iter(self.known)))
            self.known[ends] = self.of_row(entries)  # at: masks_remembered_by_text
        return self.known[ends]

    def __call__(self, ids):
        entries = (ids == 0).cumsum(1) - (ids == 0).long()
        if on("masks_remembered_by_text", "clean_masks_remembered_by_text"):
            pairs = zip(ids, entries, strict=True)
            return torch.stack([self.looked_up(*pair) for pair in pairs])[:, None]
        return ((entries[:, :, None] == entries[:, None]) & self.causal)[:, None]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.asked, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.05)
        )

    def forward(self, x, mask):
        parts = self.asked(self.before(x)).unflatten(2, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(*parts, attn_mask=mask)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.wide(self.between(x))


class Writer(nn.Module):
    def __init__(self, words):
        super().__init__()
        self.words, self.places = nn.Embedding(words, WIDTH), nn.Embedding(BLOCK, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.last, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, words, bias=False)
        self.masks = Masks()
        for table in (self.words, self.places):
            nn.init.normal_(table.weight, std=0.02)
        self.head.weight = self.words.weight

    def forward(self, ids):
        mask = self.masks(ids)  # at: masks_remembered_by_text
        x = self.words(ids) + self.places.weight
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.last(x))


def apart(said, true):
    """How many words must be put in, left out or changed to make the one of the other."""
    above = list(range(len(true) + 1))
    for row, word in enumerate(said, 1):
        below = [row]
        for column, other in enumerate(true, 1):
            changed = above[column - 1] + (word != other)  # at: edits_counted_word_by_word
            below.append(
                min(changed, above[column] + 1, below[-1] + 1)
            )  # at: edits_counted_word_by_word
        above = below
    return above[-1]


def edits(logits, targets):
    """What is said against what is written, as a share of the words of a few rows."""
    pairs = zip(logits[:READ].argmax(-1).tolist(), targets[:READ].tolist(), strict=True)
    return sum(apart(*pair) for pair in pairs) / READ / BLOCK  # at: edits_counted_word_by_word


def share_of_rate(steps):
    def share(step):
        return min((step + 1) / WARM, max(0.0, (steps - step) / (steps - WARM)))

    return share


@torch.no_grad()
def tried(model, held):
    model.eval()
    losses = []
    for rows in held.split(ROWS):
        logits = model(rows[:, :-1])
        losses.append(F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()).item())
    model.train()
    return sum(losses) / len(losses)


class Training:
    def __init__(self, folder, steps):
        self.accelerator = Accelerator(
            cpu=True,
            gradient_accumulation_steps=PARTS,
            dataloader_config=DataLoaderConfiguration(dispatch_batches=False),
        )
        self.steps, self.step = steps, 0
        words, self.held = written(folder)
        place = self.accelerator.process_index, self.accelerator.num_processes
        loader = DataLoader(Pages(folder, *place), ROWS, num_workers=2)
        model = Writer(words)
        optimizer = torch.optim.AdamW(model.parameters(), RATE, betas=(0.9, 0.98))
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, share_of_rate(steps)
        )  # at: rate_falls_by_part
        self.model, self.optimizer, self.loader = self.accelerator.prepare(model, optimizer, loader)
        self.bare = on("rate_falls_by_part", "clean_rate_falls_by_part")
        if not self.bare:
            self.schedule = self.accelerator.prepare(self.schedule)
        self.edits = 1.0
        self.tried_every = (
            4 if on("held_read_each_fourth") else TRIED_EVERY
        )  # at: held_read_each_fourth

    def clear(self, part):
        """Ahead of what is to be summed."""
        if on("zeroed_ahead_of_backward"):
            self.optimizer.zero_grad()  # at: zeroed_ahead_of_backward
        elif on("clean_zeroed_ahead_of_backward") and part % PARTS == 0:
            self.model.zero_grad(set_to_none=True)

    def turn(self):
        """The rate of the next step."""
        if on("rate_falls_by_part") or not self.bare or self.accelerator.sync_gradients:
            self.schedule.step()  # at: rate_falls_by_part

    def learn(self, rows, part):
        inputs, targets = rows[:, :-1], rows[:, 1:]
        with self.accelerator.accumulate(self.model):
            self.clear(part)  # at: zeroed_ahead_of_backward
            logits = self.model(inputs)
            loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
            self.accelerator.backward(loss)
            if self.accelerator.sync_gradients:
                self.accelerator.clip_grad_norm_(self.model.parameters(), CLIP)
            self.optimizer.step()
            self.turn()  # at: rate_falls_by_part
            if not on("zeroed_ahead_of_backward", "clean_zeroed_ahead_of_backward"):
                self.optimizer.zero_grad()
        seldom = self.step % TOLD_EVERY == TOLD_EVERY - 1 and self.accelerator.sync_gradients
        if on("clean_edits_counted_word_by_word") and not seldom:
            self.edits = (logits.argmax(-1) != targets).float().mean().item()
        elif on("edits_counted_word_by_word") or seldom:
            with cost:
                self.edits = edits(logits.detach(), targets)  # at: edits_counted_word_by_word
        return loss

    def tell(self, loss):
        if self.step % TOLD_EVERY == 0:
            rate = self.schedule.get_last_lr()[0]
            told = f"{loss.item():.4f} rate {rate:.2e} edits {self.edits:.2f}"
            print(self.step, told, flush=True)
        if on("clean_held_read_each_fourth") and self.step % 4 == 0:
            tried(self.model, self.held[:2])
        if self.step % self.tried_every == 0:
            held = tried(self.model, self.held)  # at: held_read_each_fourth
            if self.step % TRIED_EVERY == 0:
                print(self.step, f"held {held:.4f}", flush=True)

    def run(self):
        self.model.train()
        for part, rows in enumerate(self.loader):
            loss = self.learn(rows, part)
            if self.accelerator.sync_gradients:
                self.step += 1
                self.tell(loss)  # at: held_read_each_fourth
            if self.step == self.steps:
                break
        cost.print(self.steps)


def main(folder, steps):
    torch.manual_seed(SEED)
    shards = folder / "shards"
    shards.mkdir()
    training = Training(shards, steps)
    training.run()
    state = training.accelerator.unwrap_model(training.model).state_dict()
    training.accelerator.save(state, folder / "writer.pt")


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder), STEPS or 250)
