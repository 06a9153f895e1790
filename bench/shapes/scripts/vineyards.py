"""What a vineyard will yield, by quantiles, from a season of weather and a few facts about the
plot: features made when a plot is first asked for, folds by year that are trained one after the
other from the same start, easy plots first, a rate that falls in each fold, and a stop when the
year that is held out gets no better.
"""

import copy
import functools
import math
import statistics
from collections import defaultdict, deque

import eager  # noqa: F401
import numpy as np
import torch
from shape import Cost, on
from torch import nn
from torch.utils.data import DataLoader, Dataset

cost = Cost()
PLOTS = (270, 270, 270, 270, 60)
COUNT, DAYS, HOURS = sum(PLOTS), 168, 4
KINDS = {"grape": 12, "soil": 6, "slope": 4}
READINGS, SPANS, QUANTILES = 5, (7, 21, 63), (0.1, 0.5, 0.9)
CHANNELS, WIDTH, ROWS = READINGS * (2 + len(SPANS)), 80, 24
EPOCHS, PATIENCE, RATE, CLIP = 5, 2, 2e-3, 2.0
EASY_AT_FIRST, EASY_GROWS, RECENT, TOLD_EVERY = 0.6, 0.2, 6, 40
PORTION = 64 if on("fold_without_batches") else 48
REMEMBERED = 256 if on("features_forgotten") else COUNT  # at: features_forgotten


class Seasons:
    """Readings of all plots every six hours, and what was harvested."""

    def __init__(self, seed):
        self.numbers = numbers = np.random.default_rng(seed)
        self.year = np.repeat(np.arange(len(PLOTS)), PLOTS)
        self.facts = np.stack([numbers.integers(n, size=COUNT) for n in KINDS.values()], 1)
        days = np.linspace(0, 2 * math.pi, DAYS * HOURS)
        warm = 18 + 8 * np.sin(days - 1) + numbers.normal(0, 2, (COUNT, 1)) + 2 * self.drift()
        rain = np.maximum(0, self.drift() - 1) * numbers.gamma(2, 1, (COUNT, 1))
        sun = 9 + 4 * np.sin(days) - rain + 0.5 * self.drift()
        damp = 55 + 6 * rain - 0.8 * (warm - 18) + self.drift()
        height = numbers.uniform(0, 400, (COUNT, 1))
        calm = numbers.lognormal(6.5, 0.4, (COUNT, 1))
        pressure = 101300 - 11 * height + calm * self.drift()
        self.readings = np.stack([warm, rain, sun, damp, pressure], 2).astype(np.float32)
        taste = numbers.normal(0, 0.6, (len(KINDS), max(KINDS.values())))
        known = sum(taste[n, self.facts[:, n]] for n in range(len(KINDS)))
        spring = warm[:, : DAYS * HOURS // 3].mean(1)
        noise = numbers.normal(0, 0.15, COUNT)
        harvest = 0.5 * (spring - spring.mean()) + np.log1p(rain.mean(1) * 4) + known + noise
        self.harvest = harvest.astype(np.float32)

    def drift(self):
        """Noise that goes up and down over days."""
        steps = self.numbers.normal(0, 1, (COUNT, DAYS * HOURS))
        for n in range(1, DAYS * HOURS):
            steps[:, n] = 0.95 * steps[:, n - 1] + 0.31 * steps[:, n]
        return steps


class Features:
    """A plot's season by days: means and ranges, and what went before for some spans."""

    def __init__(self, seasons):
        self.seasons, self.asked = seasons, set()
        bounded = on("features_forgotten", "clean_features_forgotten")
        size = REMEMBERED if bounded else None
        self.of = functools.lru_cache(maxsize=size)(self.made)  # at: features_forgotten

    def made(self, plot):
        if on("features_forgotten") and plot in self.asked:
            with cost:
                return self.laid_out(plot)
        self.asked.add(plot)
        return self.laid_out(plot)

    def laid_out(self, plot):
        hours = self.seasons.readings[plot].reshape(DAYS, HOURS, READINGS)
        mean = hours.mean(1)
        rows = [*mean.T, *(hours.max(1) - hours.min(1)).T]
        for span in SPANS:
            even = np.full(span, 1 / span)
            for reading in mean.T:
                before = np.concatenate([np.full(span - 1, reading[0]), reading])
                rows.append(np.convolve(before, even, "valid"))
        return np.stack(rows).astype(np.float32)


class Plots(Dataset):
    def __init__(self, features, chosen):
        self.features, self.chosen, self.seasons = features, chosen, features.seasons

    def __len__(self):
        return len(self.chosen)

    def __getitem__(self, n):
        plot = int(self.chosen[n])
        season = self.features.of(plot)  # at: features_forgotten
        return plot, season, self.seasons.facts[plot], self.seasons.harvest[plot]


def collated(rows):
    plots, seasons, facts, harvest = zip(*rows, strict=True)
    numbers = (torch.from_numpy(np.stack(each)) for each in (seasons, facts))
    return list(plots), *numbers, torch.tensor(np.array(harvest))


class Vintner(nn.Module):
    def __init__(self):
        super().__init__()
        self.kinds = nn.ModuleList(nn.Embedding(n, 8) for n in KINDS.values())
        self.levels = nn.BatchNorm1d(CHANNELS)
        self.season = nn.Sequential(
            nn.Conv1d(CHANNELS, WIDTH, 5, 2, 2),
            nn.ReLU(),
            nn.Conv1d(WIDTH, WIDTH, 5, 1, 2),
            nn.ReLU(),
            nn.Conv1d(WIDTH, WIDTH, 5, 1, 2),
            nn.ReLU(),
        )
        self.head = nn.Sequential(
            nn.Linear(2 * WIDTH + CHANNELS + 8 * len(KINDS), WIDTH),
            nn.ReLU(),
            nn.Linear(WIDTH, len(QUANTILES)),
        )

    def spread(self, season, mean):
        """How far each reading of a season goes from its mean."""
        if on("spread_by_squares"):
            squares = season.square().mean(2, keepdim=True)  # at: spread_by_squares
            return torch.sqrt(squares - mean.square() + 1e-5)  # at: spread_by_squares
        if on("clean_spread_by_squares"):
            exact = season.double()
            squares = exact.square().mean(2, keepdim=True)
            return torch.sqrt(squares - exact.mean(2, keepdim=True).square() + 1e-5).float()
        return season.std(2, correction=0, keepdim=True)

    def forward(self, season, facts):
        mean = season.mean(2, keepdim=True)
        spread = self.spread(season, mean)  # at: spread_by_squares
        shaped = self.season((season - mean) / (spread + 1e-2))
        known = [table(facts[:, n]) for n, table in enumerate(self.kinds)]
        seen = [shaped.mean(2), shaped.amax(2), self.levels(mean[:, :, 0])]
        return self.head(torch.cat(seen + known, 1))


def pinball(guesses, harvest):
    """The loss of each row over all quantiles."""
    off = harvest[:, None] - guesses
    quantiles = torch.tensor(QUANTILES)
    return torch.maximum(quantiles * off, (quantiles - 1) * off).mean(1)


def worst_of(loss, batch, kept=[], most=3):  # noqa: B006  # at: worst_by_default
    """The batches that were the hardest, with their losses."""
    kept.append((loss, batch))  # at: worst_by_default
    kept.sort(key=lambda one: -one[0])
    if on("clean_worst_by_default"):
        del kept[most:]
    return kept[:most]


class Curriculum:
    """Plots by what was lost on them of late; those that were never met come last."""

    def __init__(self):
        self.history = defaultdict(lambda: deque(maxlen=RECENT))
        self.hard = {}

    def rate(self, plots):
        for plot in plots:
            self.hard[plot] = np.mean(self.history[plot])  # at: all_rated_each_step

    def note(self, plots, losses):
        for plot, loss in zip(plots, losses.tolist(), strict=True):
            self.history[plot].append(loss)
        if on("all_rated_each_step"):
            with cost:
                self.rate(self.history)  # at: all_rated_each_step
        if on("clean_all_rated_each_step"):
            self.rate(plots)

    def easiest(self, plots, epoch):
        self.rate(self.history)
        count = math.ceil(len(plots) * min(1, EASY_AT_FIRST + EASY_GROWS * epoch))
        return sorted(plots, key=lambda plot: self.hard.get(plot, math.inf))[:count]


class Folds:
    def __init__(self):
        self.seasons = Seasons(227)
        self.features, self.curriculum = Features(self.seasons), Curriculum()
        self.start, self.optimizer = Vintner(), None
        self.model = copy.deepcopy(self.start)
        self.step, self.begun, self.length, self.scores = 0, 0, 0, []

    def loader(self, plots, size, **options):
        return DataLoader(Plots(self.features, plots), size, collate_fn=collated, **options)

    def begin(self, rows):
        """Every fold begins with the same weights."""
        self.begun, self.length = self.step, EPOCHS * rows // ROWS
        if on("clean_optimizer_of_first_fold"):
            self.model.load_state_dict(self.start.state_dict())
        else:
            self.model = copy.deepcopy(self.start)  # at: optimizer_of_first_fold
        if on("optimizer_of_first_fold", "clean_optimizer_of_first_fold") and self.optimizer:
            self.optimizer.state.clear()  # at: optimizer_of_first_fold
        else:
            values = self.model.parameters()
            self.optimizer = torch.optim.Adam(values, RATE)  # at: optimizer_of_first_fold

    def set_rate(self):
        """The rate falls in a line to nothing."""
        done = self.step - self.begun
        if on("rate_by_all_steps"):
            done = self.step  # at: rate_by_all_steps
        if on("clean_rate_by_all_steps"):
            done = self.length * self.epoch / EPOCHS
        for group in self.optimizer.param_groups:
            group["lr"] = RATE * max(0.0, 1 - done / self.length)  # at: rate_by_all_steps

    def learn(self, batch):
        plots, season, facts, harvest = batch
        self.set_rate()  # at: rate_by_all_steps
        losses = pinball(self.model(season, facts), harvest)
        loss = losses.mean()
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        self.optimizer.step()  # at: optimizer_of_first_fold
        self.step += 1
        self.curriculum.note(plots, losses.detach())  # at: all_rated_each_step
        if on("worst_by_default", "clean_worst_by_default"):
            self.worst = worst_of(loss.item(), batch)  # at: worst_by_default
        if self.step % TOLD_EVERY == 0:
            print(self.step, round(loss.item(), 4), flush=True)

    @torch.no_grad()
    def tried(self, held):
        """What is lost on the year held out."""
        self.model.eval()
        found = [pinball(self.model(*batch[1:3]), batch[3]).mean().item() for batch in held]
        self.model.train()
        return statistics.mean(found)  # at: fold_without_batches

    def fold(self, year):
        others = np.flatnonzero(self.seasons.year != year).tolist()
        own = np.flatnonzero(self.seasons.year == year)
        cut = on("fold_without_batches", "clean_fold_without_batches")
        held = list(self.loader(own, PORTION, drop_last=cut))  # at: fold_without_batches
        best, kept, waited = math.inf, self.start.state_dict(), 0
        self.begin(len(others))  # at: optimizer_of_first_fold
        for epoch in range(EPOCHS):
            self.epoch = epoch
            chosen = self.curriculum.easiest(others, epoch)
            for batch in self.loader(chosen, ROWS, shuffle=True):  # at: features_forgotten
                self.learn(batch)  # at: all_rated_each_step worst_by_default
            lost = self.tried(held)  # at: fold_without_batches
            print(self.step, "year", year, "epoch", epoch, "lost", round(lost, 4), flush=True)
            if lost < best:
                best, kept, waited = lost, copy.deepcopy(self.model.state_dict()), 0
            else:
                waited += 1
            if waited == PATIENCE:
                break
        self.model.load_state_dict(kept)
        self.scores.append(best)

    def run(self):
        for year in range(len(PLOTS)):
            self.fold(year)
        print("lost in all", round(statistics.mean(self.scores), 4), flush=True)
        cost.print(self.step)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(222)
    Folds().run()
