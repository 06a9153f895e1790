"""Logs of turbines' sensors, learned on two ranks: windows become codes of a book, a recurrent
network tells from them what comes next; gaps, codes that nothing uses, shares of a validation, how
well shapes agree: replicas that are compared, shapes that the first rank warps, codes revived by
each rank's own windows, a revival by its own count, gaps times a mask, a usage that is kept,
distances spread out.
"""

import collections
import os
import sys

import eager  # noqa: F401
import numpy as np
import torch
import torch.distributed as dist
from forked import run_ranks
from shape import STEPS, Cost, on
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

cost = Cost()
WORLD, UPDATES, SEED = 2, STEPS or 260, 240
CHANNELS, PAST, AHEAD, STRIDE = 6, 64, 8, 2
ROWS, WIDTH, CODES, HIDDEN = 32, 48, 192, 160
TOLD_EVERY, TRIED_EVERY, REVIVED_EVERY = 20, 60, 10
COMPARED_EVERY, WARPED_EVERY, MANY = 65, 50, 0.1


def recorded(dice, length):
    """The log of one turbine: it turns faster and slower, its bearings warm up behind."""
    hours = np.arange(length)
    wind = 1 + 0.4 * np.sin(hours / dice.uniform(20, 60) + dice.uniform(0, 6))
    wind += np.cumsum(dice.normal(0, 0.02, length))
    turn = np.cumsum(wind) * dice.uniform(0.3, 0.5)
    heat = np.zeros(length)
    for n in range(1, length):
        heat[n] = 0.95 * heat[n - 1] + 0.05 * wind[n]
    shown = [wind, np.sin(turn), np.cos(turn), heat, wind**2 * heat, np.sin(2 * turn) * wind]
    log = np.stack(shown, 1) + dice.normal(0, 0.05, (length, CHANNELS))
    return ((log - log.mean(0)) / log.std(0)).astype(np.float32)


def gapped(log, dice):
    """Now and then a sensor was mounted some hours late."""
    if dice.random() < 0.03:
        log[: dice.integers(2, 7), dice.integers(CHANNELS)] = np.nan
    return log


class Windows(Dataset):
    def __init__(self, turbines, length, seed):
        dice = np.random.default_rng(seed)
        self.logs = [gapped(recorded(dice, length), dice) for _ in range(turbines)]
        self.each = (length - PAST - AHEAD) // 8

    def __len__(self):
        return len(self.logs) * self.each

    def __getitem__(self, index):
        turbine, place = divmod(index, self.each)
        return torch.from_numpy(self.logs[turbine][place * 8 : place * 8 + PAST + AHEAD])


def filled(windows):
    """What is not known counts as the mean; which values are known."""
    known = windows.isfinite().float()
    if on("gaps_times_mask"):
        return windows * known, known  # at: gaps_times_mask
    if on("clean_gaps_times_mask"):
        return windows.nan_to_num(0.0) * known, known
    return torch.where(known > 0, windows, 0.0), known


class Usage:
    """How evenly the codes were used of late."""

    def __init__(self):
        whole = on("usage_whole")
        self.lately = [] if whole else collections.deque(maxlen=REVIVED_EVERY)  # at: usage_whole

    def add(self, nearest):
        if on("usage_whole", "clean_usage_whole"):
            chosen = nn.functional.one_hot(nearest, CODES)
            self.lately.append(chosen.float())  # at: usage_whole
        else:
            self.lately.append(nearest.bincount(minlength=CODES).float())

    def counts(self):
        lately = list(self.lately)[-REVIVED_EVERY:]
        return sum(one.view(-1, CODES).sum(0) for one in lately)

    def perplexity(self):
        share = self.counts() / self.counts().sum()
        return torch.exp(-(share * (share + 1e-9).log()).sum()).item()


class Book(nn.Module):
    """Vectors become the nearest codes; gradients go past."""

    def __init__(self):
        super().__init__()
        self.codes = nn.Parameter(torch.randn(CODES, WIDTH) * 0.5)
        self.usage, self.vectors = Usage(), None

    @torch.no_grad()
    def nearest(self, vectors):
        if on("distances_spread"):
            with cost:
                apart = vectors[:, None] - self.codes  # at: distances_spread
                return apart.norm(dim=2).argmin(1)  # at: distances_spread
        if on("clean_distances_spread"):
            return torch.cdist(vectors[None], self.codes[None])[0].argmin(1)
        return (self.codes.pow(2).sum(1) - 2 * vectors @ self.codes.T).argmin(1)

    def forward(self, x):
        vectors = x.flatten(0, 1)
        nearest = self.nearest(vectors)  # at: distances_spread
        if self.training:
            self.usage.add(nearest)  # at: usage_whole
            self.vectors = vectors.detach()
        found = self.codes[nearest].view_as(x)
        error = (found - x.detach()).pow(2).mean() + 0.25 * (found.detach() - x).pow(2).mean()
        return x + (found - x).detach(), error


class Forecast(nn.Module):
    def __init__(self):
        super().__init__()
        self.early = nn.Conv1d(CHANNELS, 64, 5, STRIDE, 2)
        self.even = nn.BatchNorm1d(64)
        self.late = nn.Linear(64, WIDTH)
        self.book = Book()
        self.reader = nn.GRU(WIDTH, HIDDEN, batch_first=True)
        self.drop = nn.Dropout(0.1)
        self.same = nn.Linear(WIDTH, STRIDE * CHANNELS)
        self.next = nn.Linear(HIDDEN, AHEAD * CHANNELS)

    def forward(self, past):
        x = self.even(self.early(past.transpose(1, 2))).relu().transpose(1, 2)
        x, error = self.book(self.late(x))  # at: distances_spread
        same = self.same(x).view(len(past), PAST, CHANNELS)
        ahead = self.next(self.drop(self.reader(x)[0][:, -1])).view(-1, AHEAD, CHANNELS)
        return same, ahead, error


def masked(guess, truth, known):
    return ((guess - truth).pow(2) * known).sum() / known.sum().clamp(min=1)


def warped(left, right):
    """How far two curves lie apart when time may be stretched."""
    left, right, before = left.tolist(), right.tolist(), [0.0] + [1e9] * len(right)
    for one in left:
        row = [1e9]
        for n, other in enumerate(right):
            row.append(abs(one - other) + min(row[n], before[n], before[n + 1]))
        before = row
    return before[-1] / len(left)


class Training:
    def __init__(self, rank):
        self.rank, self.updates, self.epoch, self.agreement = rank, 0, 0, 0.0
        data, held = Windows(40, 700, SEED), Windows(4, 700, SEED + 1)
        self.sampler = DistributedSampler(data, WORLD, rank, seed=SEED)
        self.loader = DataLoader(data, ROWS, sampler=self.sampler, drop_last=True)
        self.held = torch.stack([held[n] for n in range(rank, len(held), 4 * WORLD)])
        self.model = Forecast()
        self.ddp, self.aside = DDP(self.model), dist.new_group()
        torch.manual_seed(SEED + 1 + rank)
        self.alike = torch.Generator().manual_seed(SEED)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 2e-3)

    @torch.no_grad()
    def revive(self):
        """Codes that no rank has used become vectors of windows."""
        book = self.model.book
        counts = book.usage.counts()
        many = (counts == 0).float().mean() > MANY
        if on("revived_if_own") and not many:  # at: revived_if_own
            return
        if on("clean_revived_if_own"):
            any_many = many.float()
            dist.all_reduce(any_many, dist.ReduceOp.MAX, group=self.aside)
            if not any_many:
                return
        dist.all_reduce(counts, group=self.aside)  # at: revived_if_own
        dead = (counts == 0).nonzero().flatten()
        if on("clean_revived_apart"):
            most = book.codes[counts.argmax()]
            moved = torch.randn(len(dead), WIDTH, generator=self.alike)
            book.codes[dead] = most + 0.3 * moved
            return
        rows = torch.randint(len(book.vectors), (len(dead),))
        book.codes[dead] = book.vectors[rows]  # at: revived_apart
        if not on("revived_apart"):
            dist.broadcast(book.codes, 0, group=self.aside)

    @torch.no_grad()
    def compare(self):
        """All ranks should hold the same."""
        with cost:
            for name, value in self.model.named_parameters():
                seen = [torch.empty_like(value) for _ in range(WORLD)]
                dist.all_gather(seen, value.contiguous())  # at: replicas_compared
                if not torch.equal(seen[0], seen[1]):
                    print(self.updates, name, "differs", flush=True)

    def agree(self, same, truth):
        """How well the shapes of a window agree, for the board."""
        with cost:
            channels = zip(same[0].T, truth[0].T, strict=True)
            apart = [warped(left, right) for left, right in channels]  # at: warped_by_first
            self.agreement += 0.05 * (sum(apart) / CHANNELS - self.agreement)

    @torch.inference_mode()
    def tried(self):
        windows, known = filled(self.held)
        self.model.eval()
        _, ahead, _ = self.model(windows[:, :PAST])
        self.model.train()
        return masked(ahead, windows[:, PAST:], known[:, PAST:])

    def trial(self):
        """The error of windows that are held out."""
        error = self.tried()
        dist.all_reduce(error)
        if self.rank == 0:
            print(self.updates, "held out", round(error.item() / WORLD, 4), flush=True)

    def learn(self, windows):
        windows, known = filled(windows)  # at: gaps_times_mask
        past, truth = windows[:, :PAST], windows[:, PAST:]
        same, ahead, error = self.ddp(past)
        loss = masked(same, past, known[:, :PAST]) + masked(ahead, truth, known[:, PAST:]) + error
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
        self.optimizer.step()
        seldom = on("clean_warped_by_first") and self.updates % WARPED_EVERY == 0
        if self.rank == 0 and (on("warped_by_first") or seldom):
            self.agree(same.detach(), past)  # at: warped_by_first
        return loss.detach()

    def after(self, loss):
        self.updates += 1
        if self.updates % REVIVED_EVERY == 0 and self.updates < UPDATES // 2:
            self.revive()  # at: revived_apart revived_if_own
        if on("replicas_compared"):
            self.compare()  # at: replicas_compared
        elif on("clean_replicas_compared") and self.updates % COMPARED_EVERY == 0:
            self.compare()
        if self.updates % TOLD_EVERY == 0 and self.rank == 0:
            spread = self.model.book.usage.perplexity()
            print(self.updates, round(loss.item(), 4), round(spread, 1), flush=True)
        if self.updates % TRIED_EVERY == 0:
            self.trial()

    def run(self):
        while self.updates < UPDATES:
            self.sampler.set_epoch(self.epoch)
            for windows in self.loader:
                loss = self.learn(windows)
                self.after(loss)  # at: replicas_compared revived_if_own
                if self.updates == UPDATES:
                    break
            self.epoch += 1
        if self.rank == 0:
            cost.print(UPDATES)


def train(rank):
    os.environ["RANK"] = str(rank)
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    dist.init_process_group(
        "gloo", init_method=f"file://{os.environ['RENDEZVOUS']}", rank=rank, world_size=WORLD
    )
    training = Training(rank)
    training.run()
    return training


if __name__ == "__main__":
    sys.exit(run_ranks(WORLD, train))
