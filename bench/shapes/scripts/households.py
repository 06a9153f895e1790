"""What households will draw from the grid tomorrow, in quantiles: a causal convolution over a week
of hours, what is known of each house, gaps where a meter was silent, backtests now and then: stamps
that are parsed, a spread of all history, factors that are looked up, gaps that are weighed, a row
that is left, days that are rolled out, draws that are the same.
"""

import contextlib
import datetime as dt
import math
import random
from collections import defaultdict

import eager  # noqa: F401
import numpy as np
import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

cost = Cost()
HOUSES, DAYS, WEEK, DAY, ROWS = 240, 200, 168, 24, 32
HOURS, FIRST, STAMP = DAYS * DAY, dt.datetime(2024, 1, 1), "%Y-%m-%d %H:%M"
LEVELS = (0.1, 0.25, 0.5, 0.75, 0.9)
HOLIDAYS = {(1, 1), (3, 29), (4, 1), (5, 1), (5, 9), (5, 20)}
TOLD_EVERY, TESTED_EVERY, PATHS = 25, 25, 8


def metered(numbers):
    """Loads of houses by the hour, not a number where a meter was silent; what is known of them."""
    hour = np.arange(HOURS)
    kinds = numbers.uniform(0, 1, (4, DAY)) + np.stack(
        [1.5 * np.exp(-(((np.arange(DAY) - peak) / 3) ** 2)) for peak in (7, 12, 18, 21)]
    )
    cold = np.cos(hour / HOURS * math.pi) + 0.2 * np.sin(hour / 90)
    kind, size, heated = (numbers.integers(0, 4, HOUSES), *numbers.uniform(0.2, 2, (2, HOUSES)))
    static = np.column_stack([kind, size, heated, numbers.integers(1, 6, HOUSES)])
    weekend = 1 + 0.3 * ((hour // DAY) % 7 > 4)
    shape = kinds[kind][:, hour % DAY]
    loads = size[:, None] * (shape * weekend + 0.2 * heated[:, None] * cold.clip(0))
    loads *= np.exp(numbers.normal(0, 0.15, loads.shape))
    for house in numbers.choice(HOUSES, 12, replace=False):
        silent = numbers.integers(WEEK, HOURS - DAY)
        loads[house, silent : silent + numbers.integers(10, 30)] = np.nan
    return loads, static


def filled(loads):
    """Gaps get the hour that was before them."""
    last = np.where(np.isnan(loads), 0, np.arange(loads.shape[1]))
    return np.take_along_axis(loads, np.maximum.accumulate(last, 1), 1)


def waves(hours, days, holidays):
    turns = [2 * math.pi * hours / DAY, 2 * math.pi * days / 7]
    return np.stack([*map(np.sin, turns), *map(np.cos, turns), holidays], 1).astype(np.float32)


class Calendar:
    """Hour, weekday and holiday, as a network likes to see them."""

    def __init__(self):
        hours = [FIRST + dt.timedelta(hours=n) for n in range(HOURS)]
        self.stamps = [hour.strftime(STAMP) for hour in hours]
        free = [(hour.month, hour.day) in HOLIDAYS for hour in hours]
        hour = np.arange(HOURS)
        self.known = waves(hour % DAY, hour // DAY % 7, np.array(free))

    def __call__(self, start, length):
        stamps = self.stamps[start : start + length]
        if on("stamps_parsed"):
            rows = []
            for stamp in stamps:
                when = dt.datetime.strptime(stamp, STAMP)  # at: stamps_parsed
                free = (when.month, when.day) in HOLIDAYS
                rows.append((when.hour, when.weekday(), free))
            return waves(*np.array(rows, dtype=np.float32).T)
        if on("clean_stamps_parsed"):
            when = dt.datetime.strptime(stamps[0], STAMP)
            hour, free = when.hour + np.arange(length), self.known[start : start + length, 4]
            return waves(hour % DAY, (when.weekday() + hour // DAY) % 7, free)
        return self.known[start : start + length]


class Windows(Dataset):
    """A week of a house, and the day after it; it begins up to so many hours later at random."""

    def __init__(self, loads, static, places, later=1):
        self.raw, self.loads, self.static = loads, filled(loads), static.astype(np.float32)
        self.places, self.later, self.calendar = places, later, Calendar()
        replaced = {(n, 24 * n % 1000): np.full((WEEK, 6), 1.02) for n in range(0, HOUSES, 9)}
        self.factors = defaultdict(lambda: np.ones((WEEK, 6)), replaced)  # at: factors_looked_up

    def __len__(self):
        return len(self.places)

    def mended(self, past, house, start):
        """What a meter that was replaced has read wrong."""
        if on("factors_looked_up"):
            return past * self.factors[house, start]  # at: factors_looked_up
        if on("clean_factors_looked_up"):
            return past * self.factors.get((house, start), 1.0)
        return past

    def __getitem__(self, index):
        house, start = self.places[index]
        start += random.randrange(self.later)
        known = self.calendar(start, WEEK + DAY)  # at: stamps_parsed
        past = np.log1p(self.loads[house, start : start + WEEK])
        past = np.concatenate([past[:, None], known[:WEEK]], 1)
        return {
            "past": self.mended(past, house, start).astype(np.float32),  # at: factors_looked_up
            "ahead": known[WEEK:],
            "static": self.static[house],
            "house": house,
            "target": self.raw[house, start + WEEK : start + WEEK + DAY].astype(np.float32),
        }


class Causal(nn.Module):
    def __init__(self, width, gap):
        super().__init__()
        self.room, self.drop = 2 * gap, nn.Dropout(0.1)
        self.first = nn.Conv1d(width, width, 3, dilation=gap)
        self.second = nn.Conv1d(width, width, 1)

    def forward(self, x):
        return x + self.drop(self.second(F.relu(self.first(F.pad(x, (self.room, 0))))))


class Forecaster(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.into = nn.Conv1d(6, width, 1)
        self.layers = nn.Sequential(*(Causal(width, 3**n) for n in range(4)))
        self.house = nn.Sequential(
            nn.Linear(4, 32),
            nn.BatchNorm1d(32),  # at: row_left_over
            nn.ReLU(),
            nn.Linear(32, 32),
        )
        self.out = nn.Sequential(nn.Linear(width + 37, 64), nn.ReLU(), nn.Linear(64, len(LEVELS)))

    def forward(self, batch):
        seen = self.layers(self.into(batch["past"].transpose(1, 2)))[:, :, -DAY:]
        house = self.house(batch["static"])  # at: row_left_over
        house = house[:, None].expand(-1, DAY, -1)
        out = self.out(torch.cat([seen.transpose(1, 2), batch["ahead"], house], 2))
        return torch.cat([out[..., :1], out[..., 1:].exp() * 0.1], 2).cumsum(2).expm1()


def pinball(found, target, spread):
    """How far quantiles are off, in spreads of the house; hours without a reading do not count."""
    levels = torch.tensor(LEVELS)
    there = ~target.isnan()
    if not on("gaps_weighed", "clean_gaps_weighed"):
        target = target.nan_to_num()
    off = (target[..., None] - found) / spread[:, None, None]  # at: gaps_weighed
    if on("clean_gaps_weighed"):
        off = off.masked_fill(~there[..., None], 0.0)
    losses = (levels - (off < 0).float()).abs() * ((0.01 + off**2).sqrt() - 0.1)
    losses = losses.mean(2) * there  # at: gaps_weighed
    return losses.sum() / there.sum()


def peaks(found, target, spread):
    """Highest hour of days that are drawn between the quantiles, against that of the day itself."""
    if on("draws_seeded"):
        torch.manual_seed(7)  # at: draws_seeded
        places = torch.rand(PATHS, 1, DAY)
    elif on("clean_draws_seeded"):
        places = torch.rand(PATHS, 1, DAY, generator=torch.Generator().manual_seed(7))
    else:
        places = torch.rand(PATHS, 1, DAY)
    place = places.mul(len(LEVELS) - 1)
    low = place.long().expand(-1, len(found), -1)[..., None]
    days = found.expand(PATHS, -1, -1, -1)
    below, above = days.gather(3, low)[..., 0], days.gather(3, low + 1)[..., 0]
    highest = torch.lerp(below, above, place.frac().expand_as(below)).amax(2).mean(0)
    return ((highest - target.nan_to_num().amax(1)).abs() / spread).mean()


class Training:
    def __init__(self, steps):
        numbers = np.random.default_rng(201)
        self.loads, static = metered(numbers)
        places = [
            (int(house), int(start))
            for house in numbers.permutation(HOUSES)
            for start in numbers.choice(HOURS - 240, 22, replace=False)
        ]
        numbers.shuffle(places)
        held = 191 if on("row_left_over") else 190
        self.held = Windows(self.loads, static, places[:held])
        self.loader = DataLoader(  # at: row_left_over
            Windows(self.loads, static, places[held:], DAY),
            ROWS,
            shuffle=True,
            num_workers=1,
            persistent_workers=True,
            drop_last=not on("row_left_over", "clean_row_left_over"),  # at: row_left_over
            generator=torch.Generator().manual_seed(202),
        )
        self.spreads = {}
        if not on("spread_of_history", "clean_spread_of_history"):
            self.spreads = {house: self.spread(house) for house in range(HOUSES)}
        self.model = Forecaster()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 2e-3)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, steps, 1e-4)
        self.steps, self.step = steps, 0

    def spread(self, house):
        low, high = np.nanquantile(self.loads[house], (0.25, 0.75))  # at: spread_of_history
        return high - low

    def spread_of(self, houses):
        if on("spread_of_history"):
            with cost:
                return torch.tensor([self.spread(n) for n in houses])  # at: spread_of_history
        for house in set(houses) - self.spreads.keys():
            self.spreads[house] = self.spread(house)
        return torch.tensor([self.spreads[house] for house in houses])

    def learn(self, batch):
        spread = self.spread_of(batch["house"].tolist()).float()  # at: spread_of_history
        found = self.model(batch)  # at: row_left_over
        loss = pinball(found, batch["target"], spread)  # at: gaps_weighed
        loss = loss + 0.1 * peaks(found, batch["target"], spread)  # at: draws_seeded
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.schedule.step()
        return loss.detach()

    def ahead(self, batch):
        """The middle of the next day."""
        found, known = self.model(batch)[..., 2], batch["ahead"]
        if on("days_rolled_out"):
            past = batch["past"]
            with cost:
                for n in range(1, DAY):  # at: days_rolled_out
                    new = torch.cat([found[:, n - 1 : n].log1p(), known[:, n - 1]], 1)
                    past = torch.cat([past[:, 1:], new[:, None]], 1)
                    moved = batch | {"past": past, "ahead": known.roll(-n, 1)}
                    found[:, n] = self.model(moved)[:, 0, 2]  # at: days_rolled_out
        if on("clean_days_rolled_out"):
            new = torch.cat([found[..., None].log1p(), known], 2)
            past = torch.cat([batch["past"][:, DAY:], new], 1)
            later = self.model(batch | {"past": past})[..., 2]
            print(self.step, "the day after", round(float(later.mean()), 3), flush=True)
        return found

    @torch.no_grad()
    def backtest(self):
        self.model.eval()
        rows = [self.held[n] for n in range(64)]
        batch = torch.utils.data.default_collate(rows)
        found = self.ahead(batch)  # at: days_rolled_out
        off = (found - batch["target"]).abs().nanmean()
        self.model.train()
        print(self.step, "backtest", round(float(off / batch["target"].nanmean()), 3), flush=True)

    def batches(self):
        waited = cost if on("stamps_parsed") else contextlib.nullcontext()
        while True:
            rows = iter(self.loader)
            for _ in range(len(self.loader)):
                with waited:
                    batch = next(rows)  # at: stamps_parsed
                yield batch

    def run(self):
        for batch in self.batches():  # at: stamps_parsed
            loss = self.learn(
                batch
            )  # at: spread_of_history row_left_over gaps_weighed draws_seeded
            self.step += 1
            if self.step % TOLD_EVERY == 0:
                print(self.step, round(loss.item(), 4), flush=True)
            if self.step % TESTED_EVERY == 0:
                self.backtest()  # at: days_rolled_out
            if self.step == self.steps:
                break
        cost.print(self.steps)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(203)
    Training(STEPS or 420).run()
