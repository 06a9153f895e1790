"""Pictures of a museum and what is written below them, learned by contrast on two ranks: gathered
embeddings, a learned temperature, a queue of negatives, two micro-batches an update, names of kinds
to tell pictures by: records copied deeply, a stride that knows no rank, the hardest picked by one,
a queue that is sent whole, an update of what was left, an exchange in which each sends first.
"""

import contextlib
import copy
import heapq
import itertools
import math
import os
import random
import sys

import eager  # noqa: F401
import numpy as np
import torch
import torch.distributed as dist
from forked import run_ranks
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

cost = Cost()
WORLD, UPDATES = 2, STEPS or 200
PARTS, ROWS, WIDTH, QUEUE, USED = 2, 48, 96, 30720, 512
KINDS, COLOURS, PLACES, SIZES, FILLERS = 10, 6, 4, 2, 40
STARTS = list(itertools.accumulate((KINDS, COLOURS, PLACES, SIZES), initial=1))
WORDS, LENGTH, SIDE = STARTS[-1] + FILLERS, 12, 20
CHECKED_EVERY, TOLD_EVERY, SWAPPED_EVERY = 50, 25, 40


def drawn(numbers, shapes, hues, thing):
    """A picture of a thing: a pattern of its kind, in its colour, at its place."""
    kind, colour, place, size = thing
    picture = numbers.normal(0.5, 0.05, (3, SIDE, SIDE))
    wide = 8 + 2 * size
    grown = np.kron(shapes[kind], np.ones((3, 3)))[:wide, :wide]
    top, left = (place // 2) * 9, (place % 2) * 9
    room = picture[:, top : top + wide, left : left + wide]
    room += (hues[colour][:, None, None] * grown)[:, : room.shape[1], : room.shape[2]]
    return (picture.clip(0, 1) * 255).astype(np.uint8)


def written(dice, thing):
    words = [start + one for start, one in zip(STARTS, thing, strict=False)]
    words += [STARTS[-1] + dice.randrange(FILLERS) for _ in range(dice.randint(1, 4))]
    dice.shuffle(words)
    return words + [0] * (LENGTH - len(words))


def collection(count, seed):
    """Records of two museums in turn; the second one has marked many boxes in its pictures."""
    numbers, dice = np.random.default_rng(seed), random.Random(seed)
    fixed = np.random.default_rng(195)
    shapes = fixed.choice([-1.0, 1.0], (KINDS, 4, 4))
    hues = fixed.uniform(-0.6, 0.6, (COLOURS, 3))
    records = []
    for n in range(count):
        thing = [int(numbers.integers(many)) for many in (KINDS, COLOURS, PLACES, SIZES)]
        boxes = [[dice.random() for _ in range(4)] for _ in range(110 * (n % 2))]
        captions = [written(dice, thing) for _ in range(2)]
        picture = drawn(numbers, shapes, hues, thing)
        records.append({"picture": picture, "captions": captions, "kind": thing[0], "boxes": boxes})
    return records


class Pairs(Dataset):
    def __init__(self, records, seed):
        self.records, self.dice = records, random.Random(seed)

    def __len__(self):
        return len(self.records)

    def record(self, index):
        """One that may be changed by whoever gets it."""
        if on("annotated_deepcopied"):
            with cost:
                return copy.deepcopy(self.records[index])  # at: annotated_deepcopied
        if on("clean_annotated_deepcopied"):
            return copy.copy(self.records[index])
        return self.records[index]

    def __getitem__(self, index):
        record = self.record(index)  # at: annotated_deepcopied
        picture = record["picture"]
        if self.dice.random() < 0.5:
            picture = picture + np.uint8(self.dice.randrange(8))
        return picture, self.dice.choice(record["captions"])


def collated(rows):
    pictures, captions = zip(*rows, strict=True)
    pictures = torch.from_numpy(np.stack(pictures)).float().div_(127.5).sub_(1)
    return pictures, torch.tensor(captions)


def shard(records, rank):
    """A rank's own part of the collection."""
    if on("stride_without_rank"):
        return records[::WORLD]  # at: stride_without_rank
    if on("clean_stride_without_rank"):
        half = len(records) // WORLD
        return records[rank * half : (rank + 1) * half]
    return records[rank::WORLD]


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.seen = nn.Sequential(
            nn.Conv2d(3, 24, 3, 2, 1),
            nn.ReLU(),
            nn.Conv2d(24, 48, 3, 2, 1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(48 * 25, 160),
            nn.ReLU(),
            nn.Linear(160, WIDTH),
        )
        self.words = nn.Embedding(WORDS, 96, padding_idx=0)
        self.read = nn.Sequential(nn.Linear(96, 160), nn.ReLU(), nn.Linear(160, WIDTH))
        self.scale = nn.Parameter(torch.tensor(math.log(1 / 0.1)))

    def factor(self):
        return self.scale.clamp(max=math.log(1 / 0.03)).exp()

    def pictures(self, pictures):
        return F.normalize(self.seen(pictures), dim=1)

    def captions(self, captions):
        there = (captions != 0).sum(1, keepdim=True)
        return F.normalize(self.read(self.words(captions).sum(1) / there.sqrt()), dim=1)

    def forward(self, pictures, captions):
        return self.pictures(pictures), self.captions(captions), self.factor()


class Negatives:
    """The latest embeddings of all ranks, the oldest of them overwritten."""

    def __init__(self):
        made = torch.Generator().manual_seed(196)
        self.both = [
            F.normalize(torch.randn(QUEUE, WIDTH, generator=made), dim=1) for _ in range(2)
        ]
        self.place = 0

    def push(self, pictures, captions):
        for queue, new in zip(self.both, (pictures, captions), strict=True):
            queue[self.place : self.place + len(new)] = new
        self.place = (self.place + len(pictures)) % QUEUE

    def latest(self):
        rows = torch.arange(self.place - USED, self.place) % QUEUE
        return [queue[rows] for queue in self.both]

    def agree(self):
        """All ranks have what the first one has."""
        for queue in self.both:
            dist.broadcast(queue, 0)  # at: queue_broadcast


class Contrast:
    def __init__(self, rank):
        self.rank, self.negatives, self.hardest = rank, Negatives(), []
        if on("clean_queue_broadcast"):
            self.negatives.agree()

    def gathered(self, pictures, captions):
        """Embeddings of all ranks, the own ones with their graph."""
        own = torch.stack([pictures, captions])
        parts = [torch.empty_like(own) for _ in range(WORLD)]
        dist.all_gather(parts, own.detach())
        parts[self.rank] = own
        return torch.cat(parts, 1)

    def __call__(self, pictures, captions, factor):
        all_pictures, all_captions = self.gathered(pictures, captions)
        queued_pictures, queued_captions = self.negatives.latest()
        by_picture = factor * pictures @ torch.cat([all_captions, queued_captions]).T
        by_caption = factor * captions @ torch.cat([all_pictures, queued_pictures]).T
        right = torch.arange(len(pictures)) + self.rank * len(pictures)
        loss = (F.cross_entropy(by_picture, right) + F.cross_entropy(by_caption, right)) / 2
        self.scores = by_picture.detach()[:10, WORLD * len(pictures) :].flatten()
        self.new = all_pictures.detach(), all_captions.detach()
        return loss

    def remember(self):
        self.negatives.push(*self.new)
        if on("queue_broadcast"):
            self.negatives.agree()  # at: queue_broadcast

    def pick(self, count=20):
        """Which negatives are taken for the right one most."""
        if on("hardest_picked_by_one"):
            with cost:
                pairs = enumerate(self.scores)  # at: hardest_picked_by_one
                scored = ((float(one), n) for n, one in pairs)  # at: hardest_picked_by_one
                best = heapq.nlargest(count, scored)  # at: hardest_picked_by_one
                self.hardest = [n for _, n in best]
        else:
            self.hardest = self.scores.topk(count).indices


class Training:
    def __init__(self, rank):
        self.rank, self.updates = rank, 0
        records = collection(4128, 197)
        self.held = collection(128, 198 + rank)
        shuffled = torch.Generator().manual_seed(199)
        self.loader = DataLoader(
            Pairs(shard(records, rank), 200),  # at: stride_without_rank
            ROWS,
            shuffle=True,
            drop_last=True,
            generator=shuffled,
            collate_fn=collated,
        )
        self.ddp = DDP(Towers())
        self.model, self.contrast = self.ddp.module, Contrast(rank)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-3)

    def swap(self):
        """The hardest captions of the other rank, to be told beside the own ones."""
        mine = self.contrast.negatives.both[1][: QUEUE // 2].clone()
        theirs, other = torch.empty_like(mine), 1 - self.rank
        if on("each_sends_first"):
            dist.send(mine, other)  # at: each_sends_first
            dist.recv(theirs, other)
        else:
            sent = dist.isend(mine, other)
            dist.recv(theirs, other)
            sent.wait()
        return float((mine * theirs).sum(1).mean())

    @torch.no_grad()
    def zero_shot(self):
        """How many pictures are told by the name of their kind alone."""
        self.model.eval()
        rest = [range(a, b) for a, b in itertools.pairwise(STARTS)]
        names = torch.tensor([[*words] + [0] * (LENGTH - 4) for words in itertools.product(*rest)])
        pictures = np.stack([record["picture"] for record in self.held])
        pictures = torch.from_numpy(pictures).float() / 127.5 - 1
        kinds = self.model.captions(names).unflatten(0, (KINDS, -1)).mean(1)
        best = (self.model.pictures(pictures) @ kinds.T).argmax(1)
        self.model.train()
        right = (best == torch.tensor([record["kind"] for record in self.held])).float().mean()
        dist.all_reduce(right)
        return right.item() / WORLD

    def update(self):
        self.optimizer.step()  # at: leftover_unsynced
        self.optimizer.zero_grad()
        self.updates += 1
        if self.rank == 0 and on("hardest_picked_by_one", "clean_hardest_picked_by_one"):
            self.contrast.pick()  # at: hardest_picked_by_one
        if on("each_sends_first", "clean_each_sends_first") and self.updates % SWAPPED_EVERY == 0:
            self.swap()  # at: each_sends_first

    def learn(self, batch, last):
        with contextlib.nullcontext() if last else self.ddp.no_sync():
            loss = self.contrast(*self.ddp(*batch))
            (loss / PARTS).backward()
        self.contrast.remember()  # at: queue_broadcast
        return loss.detach()

    def epoch(self):
        length = len(self.loader)
        if not on("leftover_unsynced", "clean_leftover_unsynced"):
            length -= length % PARTS
        batches = itertools.islice(self.loader, length)
        for n, batch in enumerate(batches):  # at: annotated_deepcopied
            last = (n + 1) % PARTS == 0  # at: leftover_unsynced
            if on("clean_leftover_unsynced"):
                last = last or n + 1 == length
            loss = self.learn(batch, last)  # at: leftover_unsynced queue_broadcast
            if last:
                self.update()  # at: hardest_picked_by_one each_sends_first
                yield loss
        if not last:
            self.update()  # at: leftover_unsynced
            yield loss

    def run(self):
        while self.updates < UPDATES:
            for loss in self.epoch():  # at: annotated_deepcopied
                if self.updates % TOLD_EVERY == 0 and self.rank == 0:
                    print(self.updates, round(loss.item(), 4), flush=True)
                if self.updates % CHECKED_EVERY == 0:
                    right = self.zero_shot()
                    if self.rank == 0:
                        print(self.updates, "told right", round(right, 3), flush=True)
                if self.updates == UPDATES:
                    break
        if self.rank == (1 if on("annotated_deepcopied") else 0):
            cost.print(UPDATES)


def train(rank):
    os.environ["RANK"] = str(rank)
    torch.set_num_threads(1)
    torch.manual_seed(194)
    dist.init_process_group(
        "gloo", init_method=f"file://{os.environ['RENDEZVOUS']}", rank=rank, world_size=WORLD
    )
    training = Training(rank)
    training.run()
    return training


if __name__ == "__main__":
    sys.exit(run_ranks(WORLD, train))
