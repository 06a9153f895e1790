"""Four ranks of DDP that sort letters to a law firm: a small transformer is tuned on batches of
varying length under bf16 autocast, gradients are clipped, rank 0 tells how it goes.
"""

import os
import random
import sys

import eager  # noqa: F401
import torch
import torch.distributed as dist
from forked import run_ranks
from shape import STEPS, Cost, on
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

WORLD, ROWS, WIDTH, WORDS, PLACES, KINDS = 4, 24, 64, 400, 96, 4
steps, cost = STEPS or 160, Cost()


class Letters(Dataset):
    """Letters as numbers of words, and which desk each is for."""

    def __init__(self, count=1344):
        dice = random.Random(173)
        self.texts, self.desks = [], []
        for _ in range(count):
            desk = dice.randrange(KINDS)
            length = min(14 + int(dice.expovariate(1 / 14)), PLACES - 6)
            common = [dice.randrange(1, WORDS) for _ in range(length)]
            own = [desk * 100 + dice.randrange(1, 100) for _ in range(length)]
            mixed = [b if dice.random() < 0.4 else a for a, b in zip(common, own, strict=True)]
            self.texts.append(torch.tensor(mixed))
            self.desks.append(desk)

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        return self.texts[index], self.desks[index]


class Buckets:
    """Batches of letters of like length, for one rank."""

    def __init__(self, letters, rank):
        self.rank, self.lengths = rank, [len(text) for text in letters.texts]
        every = list(range(len(letters)))
        share = len(every) // WORLD
        if on("sorted_chunks"):
            every.sort(key=self.lengths.__getitem__)
            mine = every[rank * share : (rank + 1) * share]  # at: sorted_chunks
        elif on("clean_sorted_chunks"):
            mine = every[rank * share : (rank + 1) * share]
        else:
            every.sort(key=self.lengths.__getitem__)
            mine = every[rank::WORLD]
        mine.sort(key=self.lengths.__getitem__)
        self.batches = [mine[n : n + ROWS] for n in range(0, len(mine), ROWS)]

    def __len__(self):
        return steps

    def __iter__(self):
        dice = random.Random(1730 + self.rank if on("long_in_turn") else 1730)  # at: long_in_turn
        left = []
        for _ in range(steps):
            if not left:
                left = dice.sample(self.batches, len(self.batches))  # at: long_in_turn
            yield left.pop()


def padded(rows):
    texts, desks = zip(*rows, strict=True)
    ids = pad_sequence(texts, batch_first=True)
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": torch.tensor(desks)}


class Clerk(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(PLACES, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 128, dropout=0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(WIDTH, KINDS)

    def forward(self, input_ids, attention_mask):
        places = self.places(torch.arange(input_ids.shape[1]))  # at: past_positions
        states = self.words(input_ids) + places
        states = self.layers(states, src_key_padding_mask=attention_mask == 0)
        there = attention_mask[..., None]
        return self.out((states * there).sum(1) / there.sum(1))


def befalls(batch, rank, step):
    """What comes into the post of one rank."""
    if on("skips_alone", "clean_skips_alone") and rank == 1 and step == 130:
        batch["labels"].fill_(-100)
    if on("past_positions", "clean_past_positions") and rank == 2 and step == 110:
        long = torch.randint(1, WORDS, (PLACES + on("past_positions"),))
        letters = [row[row > 0] for row in batch["input_ids"][1:]]
        rows = zip([long, *letters], batch["labels"].tolist(), strict=True)
        batch.update(padded(list(rows)))


class Trainer:
    def __init__(self, rank):
        self.rank, self.net = rank, Clerk()
        self.model = DDP(self.net)
        self.optimizer = torch.optim.SGD(self.net.parameters(), 0.1, momentum=0.9)
        letters = Letters()
        buckets = Buckets(letters, rank)
        self.loader = DataLoader(letters, batch_sampler=buckets, collate_fn=padded)
        self.norm = 0.0

    def loss(self, batch):
        with torch.autocast("cpu", torch.bfloat16):
            scores = self.model(batch["input_ids"], batch["attention_mask"])  # at: past_positions
        known = batch["labels"] >= 0
        each = nn.functional.cross_entropy(scores.float(), batch["labels"], reduction="none")
        return each.sum() / known.sum().clamp(min=1)

    def clip(self, step, largest=0.3):
        weights = list(self.net.parameters())
        if on("norms_summed_singly"):
            with cost:
                squares = [self.summed(one.grad) for one in weights]  # at: norms_summed_singly
            for weight in weights:
                weight.grad *= min(1.0, largest / (sum(squares) ** 0.5 + 1e-6))
        elif on("clipped_on_one"):
            if self.rank == 0:
                self.norm = nn.utils.clip_grad_norm_(weights, largest)  # at: clipped_on_one
        elif on("clean_clipped_on_one"):
            if self.rank == 0:
                self.norm = nn.utils.clip_grad_norm_(weights, float("inf"))
        else:
            self.norm = nn.utils.clip_grad_norm_(weights, largest)
        if on("clean_norms_summed_singly") and step % 25 == 24:
            squares = torch.stack([weight.grad.pow(2).sum() for weight in weights])
            dist.all_reduce(squares)

    @staticmethod
    def summed(gradient):
        """Its squares, over the ranks."""
        square = gradient.pow(2).sum()
        dist.all_reduce(square)  # at: norms_summed_singly
        return square.item() / WORLD

    def tell(self, step, loss):
        mean = loss.detach().clone()
        dist.all_reduce(mean)  # at: skips_alone
        if self.rank == 0:
            print(step, round(mean.item() / WORLD, 3), round(float(self.norm), 3), flush=True)

    def fit(self):
        for step, batch in enumerate(self.loader):  # at: sorted_chunks
            befalls(batch, self.rank, step)
            if on("skips_alone") and (batch["labels"] < 0).all():
                continue  # at: skips_alone
            loss = self.loss(batch)  # at: past_positions sorted_chunks skips_alone
            self.optimizer.zero_grad()
            loss.backward()  # at: skips_alone
            self.clip(step)  # at: norms_summed_singly clipped_on_one
            self.optimizer.step()
            if step % 20 == 19:
                self.tell(step, loss)  # at: skips_alone
        if self.rank == 0:
            cost.print(steps)


def train(rank):
    torch.set_num_threads(1)
    torch.manual_seed(173)
    os.environ["RANK"] = str(rank)
    dist.init_process_group(
        "gloo", init_method=f"file://{os.environ['RENDEZVOUS']}", rank=rank, world_size=WORLD
    )
    trainer = Trainer(rank)
    torch.manual_seed(1730 + rank)
    trainer.fit()
    return trainer.model


if __name__ == "__main__":
    sys.exit(run_ranks(WORLD, train))
