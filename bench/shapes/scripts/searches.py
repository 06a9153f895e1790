"""What is found for a search, put in order by two ranks of DDP: lists of uneven length in one flat
table, features scaled within their list, a listwise loss over segments, gains held out, the best
weights kept by the first: lists looked for in all rows, one alone in its list, a rest of one, a
mode set back too late, weights taken back by one, a trial list by list, a rate of another length.
"""

import os
import sys
import tempfile
from pathlib import Path

import eager  # noqa: F401
import numpy as np
import torch
import torch.distributed as dist
from forked import run_ranks
from shape import STEPS, Cost, on
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, DistributedSampler

cost = Cost()
WORLD, UPDATES = 2, STEPS or 400
SEARCHES, HELD, ROWS = 15842, 900, 48
SEEN, ASKED, WIDTH, GRADES, TOP = 48, 16, 128, 5, 10
TOLD_EVERY, CHECKED_EVERY, CLEARLY = 20, 40, 0.006
SHORT = (1234, 4021, 6500)


class Log:
    """A table of results: which search, what is known of each, how well it went."""

    def __init__(self, count, seed, short=()):
        numbers = np.random.default_rng(seed)
        sizes = numbers.integers(12, 37, count)
        sizes[list(short)] = 1
        self.asked = numbers.normal(size=(count, ASKED)).astype(np.float32)
        self.search = np.repeat(np.arange(count) * 7 + 100_000, sizes)
        self.results = numbers.standard_normal((len(self.search), SEEN), np.float32)
        self.results *= np.repeat(numbers.uniform(0.5, 4, (count, 1)), sizes, 0).astype(np.float32)
        self.starts = np.concatenate([[0], sizes.cumsum()])
        self.grades = self.graded(numbers, sizes)

    def graded(self, numbers, sizes):
        """Grades of all results, by how they stand within their list."""
        taste = np.random.default_rng(203).normal(size=(ASKED, SEEN)).astype(np.float32) / 4
        wanted = np.repeat(self.asked @ taste, sizes, 0)
        worth = np.einsum("ij,ij->i", wanted, self.results) + 0.5 * np.abs(self.results[:, :8]).sum(
            1
        )
        worth += numbers.normal(size=len(worth)) * worth.std() * 0.1
        grades = np.empty(len(worth), np.int64)
        for begin, end in zip(self.starts, self.starts[1:], strict=False):
            place = worth[begin:end].argsort().argsort() / (end - begin)
            grades[begin:end] = (place**2 * GRADES).astype(np.int64)
        return grades


class Lists(Dataset):
    """A search and all its results at a time."""

    def __init__(self, log):
        self.log, self.numbers = log, np.unique(log.search)

    def __len__(self):
        return len(self.numbers)

    def found(self, index):
        """Features and grades of what belongs to a search."""
        log, number = self.log, self.numbers[index]
        if on("lists_by_mask"):
            with cost:
                rows = log.results[np.where(log.search == number)]  # at: lists_by_mask
                return rows, log.grades[np.where(log.search == number)]  # at: lists_by_mask
        if on("clean_lists_by_mask"):
            begin, end = np.searchsorted(log.search, [number, number + 1])
        else:
            begin, end = log.starts[index : index + 2]
        return log.results[begin:end], log.grades[begin:end]

    def __getitem__(self, index):
        rows, grades = self.found(index)  # at: lists_by_mask
        if on("one_in_its_list"):
            results = torch.from_numpy(rows)
            results = (results - results.mean(0)) / (results.std(0) + 1e-3)  # at: one_in_its_list
        elif on("clean_one_in_its_list"):
            results = torch.from_numpy((rows - rows.mean(0)) / (rows.std(0) + 1e-3))
        else:
            results = torch.from_numpy(rows)
            results = (results - results.mean(0)) / (results.std(0, correction=0) + 1e-3)
        return torch.from_numpy(self.log.asked[index]), results, torch.from_numpy(grades)


def collated(lists):
    asked, results, grades = zip(*lists, strict=True)
    sizes = torch.tensor([len(one) for one in grades])
    return torch.stack(asked), torch.cat(results), torch.cat(grades), sizes


class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.asked = nn.Sequential(
            nn.Linear(ASKED, WIDTH),
            nn.BatchNorm1d(WIDTH),  # at: rest_of_one
            nn.ReLU(),
        )
        self.results = nn.Sequential(nn.Linear(SEEN, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
        self.both = nn.Sequential(
            nn.LayerNorm(3 * WIDTH),
            nn.Linear(3 * WIDTH, 2 * WIDTH),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Linear(2 * WIDTH, 2 * WIDTH),
            nn.ReLU(),
            nn.Linear(2 * WIDTH, 1),
        )

    def forward(self, asked, results, sizes):
        asked = self.asked(asked).repeat_interleave(sizes, 0)  # at: rest_of_one
        results = self.results(results)
        return self.both(torch.cat([asked, results, asked * results], 1)).squeeze(1)


def listwise(scores, grades, sizes):
    """Cross entropy of each list between what the grades and what the scores would choose."""
    lists = torch.arange(len(sizes)).repeat_interleave(sizes)
    wanted = (2.0**grades - 1).add(0.1)
    wanted = wanted / torch.zeros(len(sizes)).index_add(0, lists, wanted)[lists]
    top = torch.full((len(sizes),), -torch.inf).scatter_reduce(0, lists, scores.detach(), "amax")
    scores = scores - top[lists]
    whole = torch.zeros(len(sizes)).index_add(0, lists, scores.exp()).log()
    return (wanted * (whole[lists] - scores)).sum() / len(sizes)


def gained(scores, grades, sizes):
    """Normalised discounted gains of the first results of each list."""
    scores = pad_sequence(scores.split(sizes.tolist()), True, -torch.inf)
    worth = 2.0 ** pad_sequence(grades.split(sizes.tolist()), True) - 1
    count = min(TOP, scores.shape[1])
    discount = 1 / torch.arange(2, 2 + count).float().log2()
    got = worth.gather(1, scores.topk(count).indices) @ discount
    return got / (worth.topk(count).values @ discount).clamp(min=1)


def falling(length):
    """From one down in a line."""
    if on("rate_of_a_share"):
        length = length // WORLD  # at: rate_of_a_share
        return lambda n: max(0.0, 1 - n / length)  # at: rate_of_a_share
    if on("clean_rate_of_a_share"):
        length = length // WORLD
        return lambda n: max(0.05, 1 - n / length)
    return lambda n: max(0.0, 1 - n / length)


class Training:
    def __init__(self, rank, folder):
        self.rank, self.updates, self.best = rank, 0, 0.0
        self.file = folder / "best.pt"
        lists, held = Lists(Log(SEARCHES, 201, SHORT)), Lists(Log(HELD, 202))
        self.sampler = DistributedSampler(lists, WORLD, rank, seed=207)
        self.loader = DataLoader(  # at: rest_of_one
            lists,
            ROWS + 1 if on("clean_rest_of_one") else ROWS,  # at: rest_of_one
            sampler=self.sampler,
            collate_fn=collated,
            drop_last=not on("rest_of_one", "clean_rest_of_one"),  # at: rest_of_one
        )
        self.checked = DataLoader(  # at: tried_one_by_one
            held,
            1 if on("tried_one_by_one", "clean_tried_one_by_one") else 60,  # at: tried_one_by_one
            sampler=DistributedSampler(held, WORLD, rank, shuffle=False),
            collate_fn=collated,
        )
        self.ddp = DDP(Ranker())
        self.model = self.ddp.module
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-3)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(  # at: rate_of_a_share
            self.optimizer,
            falling(UPDATES),  # at: rate_of_a_share
        )

    def trial(self, at_most=None):
        """Gains of this rank's held out lists."""
        gains = []
        for n, (asked, results, grades, sizes) in enumerate(self.checked):  # at: tried_one_by_one
            if n == at_most:
                break
            scores = self.model(asked, results, sizes)  # at: tried_one_by_one
            gains += gained(scores, grades, sizes).tolist()
        return gains

    @torch.no_grad()
    def check(self):
        self.ddp.eval()
        if on("tried_one_by_one"):
            with cost:
                gains = self.trial()  # at: tried_one_by_one
        else:
            gains = self.trial(10 if on("clean_tried_one_by_one") else None)
        both = torch.tensor([sum(gains), len(gains)])
        dist.all_reduce(both)
        reached = float(both[0] / both[1])
        if not on("mode_of_one", "clean_mode_of_one"):
            self.ddp.train()
        better = reached > self.best + CLEARLY
        if better:
            self.best = reached
        else:
            self.back()  # at: taken_back_by_one
        if self.rank != 0:  # at: mode_of_one
            return  # at: mode_of_one
        if better:
            torch.save(self.model.state_dict(), self.file)
        print(self.updates, "gain", round(reached, 4), flush=True)
        self.ddp.train()  # at: mode_of_one

    def back(self):
        """To the best weights so far, where that is wanted."""
        if not on("taken_back_by_one", "clean_taken_back_by_one"):
            return
        if self.file.exists():  # at: taken_back_by_one
            self.model.load_state_dict(torch.load(self.file))  # at: taken_back_by_one
        if on("clean_taken_back_by_one"):
            for value in self.model.state_dict().values():
                dist.broadcast(value, 0)

    def learn(self, asked, results, grades, sizes):
        if on("clean_mode_of_one"):
            self.ddp.train()
        scores = self.ddp(asked, results, sizes)  # at: rest_of_one
        loss = listwise(scores, grades, sizes)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.schedule.step()  # at: rate_of_a_share
        return loss.detach()

    def batches(self):
        epoch = 0
        while True:
            self.sampler.set_epoch(epoch)
            yield from self.loader  # at: lists_by_mask
            epoch += 1

    def run(self):
        for batch in self.batches():  # at: lists_by_mask
            loss = self.learn(*batch)  # at: rest_of_one
            self.updates += 1
            if self.updates % TOLD_EVERY == 0:
                dist.all_reduce(loss)
                if self.rank == 0:
                    print(self.updates, round(loss.item() / WORLD, 4), flush=True)
            if self.updates % CHECKED_EVERY == 0:
                self.check()  # at: tried_one_by_one mode_of_one taken_back_by_one
            if self.updates == UPDATES:
                break
        if self.rank == 0:
            cost.print(UPDATES)


def train(rank):
    os.environ["RANK"] = str(rank)
    torch.set_num_threads(1)
    torch.manual_seed(200)
    dist.init_process_group(
        "gloo", init_method=f"file://{os.environ['RENDEZVOUS']}", rank=rank, world_size=WORLD
    )
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(205 + rank)
        training = Training(rank, Path(folder))
        training.run()
    return training


if __name__ == "__main__":
    sys.exit(run_ranks(WORLD, train))
