"""Drawings of seashells and what collectors wrote of them, brought together by a contrastive loss
over the embeddings of two ranks: an own sampler, own measures summed over ranks, a gradient noise
scale from DDP's buckets: long notes dealt to the last rank, texts that are not put back, recalls
row by row, buckets kept, a debiased loss without its floor, figures summed singly, more sought than
there are.
"""

import os
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
from torch.utils.data import DataLoader, Dataset, Sampler

WORLD, UPDATES = 2, STEPS or 250
SHELLS, HELD, ROWS, SIDE, WIDTH = 1536, 105, 24, 24, 96
FAMILIES, WORDS, SHORTEST, LONGEST = 24, 160, 6, 64
RATE, TEMPERATURE, PRIOR, FOUND = 1e-3, 0.2, 0.1, 5
TOLD_EVERY, JUDGED_EVERY, SEED, LATELY = 25, 50, 131, 120
FIGURES = ("loss", "precision", "found")
cost = Cost()


class Cabinet(Dataset):
    """Shells of families; a note tells of the family in a few of its words."""

    def __init__(self, count, seed):
        dice = np.random.default_rng(seed)
        plan = np.random.default_rng(SEED)
        shapes = plan.normal(0, 1, (FAMILIES, SIDE, SIDE))
        self.families = dice.integers(FAMILIES, size=count)
        noise = dice.normal(0, 1.5, (count, SIDE, SIDE))
        self.pictures = torch.from_numpy(shapes[self.families] + noise).float()[:, None]
        self.lengths = dice.integers(SHORTEST, LONGEST + 1, count)
        self.notes = []
        for family, length in zip(self.families, self.lengths, strict=True):
            words = dice.integers(FAMILIES * 2 + 1, WORDS, length)
            told = dice.random(length) < 0.4
            words[told] = 1 + family * 2 + dice.integers(0, 2, told.sum())
            self.notes.append(torch.from_numpy(words))

    def __len__(self):
        return len(self.notes)

    def __getitem__(self, index):
        return self.pictures[index], self.notes[index], int(self.families[index])


def beside(rows):
    pictures, notes, families = zip(*rows, strict=True)
    lengths = torch.tensor([len(note) for note in notes])
    table = nn.utils.rnn.pad_sequence(list(notes), batch_first=True)
    return torch.stack(pictures), table, lengths, torch.tensor(families)


class Dealt(Sampler):
    """Rows of like lengths in a batch; each rank has its share of them."""

    def __init__(self, lengths, rank):
        self.lengths, self.rank, self.epoch = lengths, rank, 0

    def __len__(self):
        return len(self.lengths) // WORLD

    def __iter__(self):
        dice = np.random.default_rng((SEED, self.epoch))
        order = dice.permutation(len(self.lengths))
        if on("long_notes_to_last", "clean_long_notes_to_last"):
            blurred = self.lengths + dice.uniform(0, 4, len(self.lengths))
            order = np.argsort(blurred)
        if on("long_notes_to_last"):
            own = np.array_split(order, WORLD)[self.rank]  # at: long_notes_to_last
        else:
            own = order[self.rank :: WORLD]
        batches = own[: len(own) // ROWS * ROWS].reshape(-1, ROWS)
        for batch in np.random.default_rng((SEED, self.epoch)).permutation(batches):
            yield from batch.tolist()


class Matcher(nn.Module):
    """Two towers, and the loss between all pictures and notes of all ranks."""

    def __init__(self, rank):
        super().__init__()
        self.rank = rank
        self.picture = nn.Sequential(
            nn.Conv2d(1, 16, 3, stride=2, padding=1),
            nn.GELU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.GELU(),
            nn.Flatten(),
            nn.Linear(32 * (SIDE // 4) ** 2, WIDTH),
        )
        self.words = nn.Embedding(WORDS, WIDTH, padding_idx=0)
        self.reader = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.family = nn.Linear(WIDTH, FAMILIES)

    def embedded(self, pictures, notes, lengths):
        read, _ = self.reader(self.words(notes))
        there = torch.arange(notes.shape[1]) < lengths[:, None]
        read = (read * there[..., None]).sum(1) / lengths[:, None]
        return F.normalize(self.picture(pictures), dim=1), F.normalize(self.out(read), dim=1)

    def gathered(self, own, put_back=True):
        """Embeddings of all ranks, of which this rank's have gradients."""
        all_of_them = [torch.empty_like(own) for _ in range(WORLD)]
        dist.all_gather(all_of_them, own.detach().contiguous())  # at: own_notes_not_put_back
        if put_back:
            all_of_them[self.rank] = own
        return torch.cat(all_of_them)

    def contrast(self, likeness):
        """How far each anchor is from telling its own among all others."""
        rows = len(likeness)
        places = torch.arange(rows) + self.rank * rows
        if on("debiased_without_floor", "clean_debiased_without_floor"):
            weights = (likeness / TEMPERATURE).exp()
            positive = weights.gather(1, places[:, None])[:, 0]
            others = weights.sum(1) - positive
            count = likeness.shape[1] - 1
            negative = (others - count * PRIOR * positive) / (
                1 - PRIOR
            )  # at: debiased_without_floor
            if on("clean_debiased_without_floor"):
                negative = negative.clamp(min=count * np.exp(-1 / TEMPERATURE))
            return -(positive / (positive + negative)).log().mean()  # at: debiased_without_floor
        return F.cross_entropy(likeness / TEMPERATURE, places)

    def forward(self, pictures, notes, lengths, families, classify):
        seen, read = self.embedded(pictures, notes, lengths)
        put_back = not on("own_notes_not_put_back")
        loss = self.contrast(
            seen @ self.gathered(read, put_back).T
        )  # at: own_notes_not_put_back debiased_without_floor
        if not on("own_notes_not_put_back", "clean_own_notes_not_put_back"):
            loss = loss + self.contrast(read @ self.gathered(seen).T)  # at: debiased_without_floor
        if classify:
            loss = loss + 0.2 * F.cross_entropy(self.family(seen), families)
        return loss, seen.detach(), read.detach()


def noise_hook(kept, bucket):
    """Sums a bucket over ranks, and keeps what tells how noisy the gradients are."""
    own = bucket.buffer()
    if on("buckets_kept_for_noise"):
        kept.append(own.clone())  # at: buckets_kept_for_noise
    else:
        kept.append(own.norm())
    work = dist.all_reduce(own, async_op=True)
    return work.get_future().then(lambda done: done.value()[0].div_(WORLD))


class Run:
    def __init__(self, rank):
        self.rank, self.update, self.kept, self.lately = rank, 0, [], []
        train = Cabinet(SHELLS, SEED + 1)
        self.sampler = Dealt(train.lengths, rank)  # at: long_notes_to_last
        self.loader = DataLoader(
            train, ROWS, sampler=self.sampler, collate_fn=beside, drop_last=True
        )
        held = Cabinet(HELD, SEED + 2)
        own = torch.utils.data.Subset(held, range(rank, HELD, WORLD))
        self.held = DataLoader(own, ROWS, collate_fn=beside)
        torch.manual_seed(SEED)
        self.model = DDP(Matcher(rank), find_unused_parameters=True)
        if on("buckets_kept_for_noise", "clean_buckets_kept_for_noise"):
            self.model.register_comm_hook(self.kept, noise_hook)  # at: buckets_kept_for_noise
        torch.manual_seed(SEED + 1 + rank)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), RATE, weight_decay=0.01)
        self.figures = {}

    def recalls(self, seen, read, families):
        """Mean average precision by family against the last notes, and the share found first."""
        self.lately = [*self.lately[1 - LATELY :], (seen, read, families)]
        pictures, notes, theirs = (torch.cat(parts) for parts in zip(*self.lately, strict=True))
        likeness = seen @ notes.T
        singly = self.update % TOLD_EVERY == 0 and on("clean_recalls_row_by_row")
        if on("recalls_row_by_row") or singly:
            both, twice = torch.cat((likeness, read @ pictures.T)), torch.cat((families, families))
            precisions, wanted = [], theirs.tolist()
            for row, family in zip(both, twice.tolist(), strict=True):
                hits, total = 0, 0.0
                for place, index in enumerate(row.argsort(descending=True).tolist(), 1):
                    if wanted[index] == family:  # at: recalls_row_by_row
                        hits += 1
                        total += hits / place
                precisions.append(total / hits)
            precision = torch.tensor(precisions).mean()
        else:
            right = (theirs == families[:, None]).gather(1, likeness.argsort(1, descending=True))
            places = torch.arange(1, right.shape[1] + 1)
            precision = ((right.cumsum(1) / places * right).sum(1) / right.sum(1)).mean()
        own = likeness[:, -len(read) :].diagonal()[:, None]
        found = ((likeness[:, -len(read) :] > own).sum(1) < FOUND).float().mean()
        return precision, found

    def note(self, loss, seen, read, families):
        """The figures of a step, over all ranks."""
        likeness = seen @ read.T
        figures = {"loss": loss.detach(), "own": likeness.diagonal().mean(), "all": likeness.mean()}
        with cost:
            figures["precision"], figures["found"] = self.recalls(
                seen, read, families
            )  # at: recalls_row_by_row
        for family in range(FAMILIES):
            figures[f"share {family}"] = (families == family).float().mean()
        if on("figures_summed_one_each"):
            for value in figures.values():
                dist.all_reduce(value)  # at: figures_summed_one_each
        elif on("clean_figures_summed_one_each") or self.update % TOLD_EVERY == 0:
            summed = torch.stack(list(figures.values()))
            dist.all_reduce(summed)
            figures = dict(zip(figures, summed, strict=True))
        self.figures = {name: value / WORLD for name, value in figures.items()}

    @torch.no_grad()
    def judge(self):
        """Of held shells, how many notes are among the first few."""
        self.model.eval()
        counts = torch.zeros(2)
        for pictures, notes, lengths, _ in self.held:
            seen, read = self.model.module.embedded(pictures, notes, lengths)
            likeness = seen @ read.T
            sought = FOUND
            if not on("more_sought_than_left"):
                sought = min(FOUND, len(likeness))
            if on("more_sought_than_left", "clean_more_sought_than_left"):
                first = likeness.topk(sought, 1).indices  # at: more_sought_than_left
                hits = (first == torch.arange(len(first))[:, None]).any(1)
            else:
                hits = (likeness > likeness.diagonal()[:, None]).sum(1) < FOUND
            counts += torch.stack([hits.float().sum(), torch.tensor(float(len(hits)))])
        dist.all_reduce(counts)
        self.model.train()
        return float(counts[0] / counts[1])

    def learn(self, pictures, notes, lengths, families):
        loss, seen, read = self.model(
            pictures, notes, lengths, families, self.update % 2 == 0
        )  # at: own_notes_not_put_back
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
        self.optimizer.step()
        self.update += 1
        self.note(loss, seen, read, families)  # at: recalls_row_by_row figures_summed_one_each
        if self.update % TOLD_EVERY == 0 and self.rank == 0:
            told = " ".join(f"{name} {self.figures[name]:.3f}" for name in FIGURES)
            print(self.update, told, flush=True)
        if self.update % JUDGED_EVERY == 0:
            found = self.judge()  # at: more_sought_than_left
            if self.rank == 0:
                print(self.update, f"held {found:.3f}", flush=True)

    def fit(self):
        while self.update < UPDATES:
            for batch in self.loader:  # at: long_notes_to_last
                self.learn(*batch)
                if self.update == UPDATES:
                    break
            self.sampler.epoch += 1
        if self.rank == 0:
            cost.print(UPDATES)


def main(rank):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(WORLD))
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{os.environ['RENDEZVOUS']}", rank=rank, world_size=WORLD
    )
    run = Run(rank)
    run.fit()
    return run


if __name__ == "__main__":
    sys.exit(run_ranks(WORLD, main))
