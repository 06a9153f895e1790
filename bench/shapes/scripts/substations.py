"""Loads of substations a day ahead by a transformer over patches of their past, written by hand:
archives of loads, a table of weather, seasons found by correlation, quantiles of what comes: a
table asked by conditions, a log of what flows back, lags row by row, errors in a table that is put
together anew, a rate planned for too few steps, a mode that is named only, copies for an average.
"""

import collections
import math
import os
import tempfile
from pathlib import Path

import eager  # noqa: F401
import numpy as np
import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.utils.data import DataLoader, Dataset

cost = Cost()
STATIONS, REGIONS, HOURS, HELD_HOURS = 15, 18, 3300, 500
PAST, AHEAD, PATCH, STRIDE = 192, 24, 8, 12
WIDTH, HEADS, DEPTH, LAGS = 64, 4, 2, 5
BATCH, EPOCHS = 32, 4
QUANTILES = (0.1, 0.5, 0.9)
CHECKED_EVERY, TOLD_EVERY = 68, 34


def write_weather(folder, numbers):
    """Temperature and sun of all regions, hour by hour."""
    hours, tables = np.arange(HOURS), []
    for region in range(REGIONS):
        noise = np.convolve(numbers.normal(0, 1, HOURS + 47), np.ones(48) / 7, "valid")
        season = 8 * np.sin(2 * np.pi * hours / 2400 + region)
        day = 4 * np.sin(2 * np.pi * (hours - 9) / 24)
        sun = np.clip(np.sin(2 * np.pi * (hours - 6) / 24), 0, 1) * (1 + noise / 10).clip(0.2)
        columns = [np.full(HOURS, region), hours, 12 + season + day + noise, sun]
        tables.append(np.stack(columns, 1))
    with (folder / "weather.csv").open("w") as file:
        file.write("region,hour,warm,sun\n")
        np.savetxt(file, np.concatenate(tables), "%d,%d,%.3f,%.4f")
    return tables


def write_stations(folder, weather, numbers):
    """Megawatts of each station; one of them has roofs that feed back on some bright days."""
    for station in range(STATIONS):
        region = station % REGIONS
        _, hours, warm, sun = weather[region].T
        day = 1 + 0.4 * np.sin(2 * np.pi * (hours - 10 - station % 3) / 24)
        week = np.where(hours // 24 % 7 > 4, 0.8, 1.0)
        heating = 1 + 0.02 * np.abs(warm - 16)
        size = numbers.uniform(8, 40)
        load = size * day * week * heating + numbers.normal(0, 0.3, HOURS)
        if station == 11:
            bright = (hours // 24 % 29 == 17) & (sun > 0.5)
            load = load - 2.6 * size * bright
        path = folder / f"station_{station:02}.npz"
        np.savez_compressed(path, load=load.astype(np.float32), region=region)


def flattened(load):
    """Loads of large and small stations on one scale."""
    if on("feed_in_log"):
        return np.log1p(load)  # at: feed_in_log
    if on("clean_feed_in_log"):
        return np.sign(load) * np.log1p(np.abs(load))
    return np.arcsinh(load)


class Weather:
    """What the weather was in a region at some hours."""

    def __init__(self, path):
        self.table = np.genfromtxt(path, delimiter=",", names=True)
        self.parts = {}
        for region in range(REGIONS):
            rows = self.table[self.table["region"] == region]
            values = np.stack([rows["warm"], rows["sun"]], 1).astype(np.float32)
            self.parts[region] = rows["hour"].copy(), values

    def between(self, region, begin, end):
        table = self.table
        if on("weather_by_conditions"):
            with cost:
                here = table["region"] == region  # at: weather_by_conditions
                here &= (table["hour"] >= begin) & (
                    table["hour"] < end
                )  # at: weather_by_conditions
                rows = table[here]  # at: weather_by_conditions
                return np.stack([rows["warm"], rows["sun"]], 1).astype(np.float32)
        hours, values = self.parts[region]
        if on("clean_weather_by_conditions"):
            with cost:
                first, last = np.searchsorted(hours, (begin, end))
                return values[first:last]
        return values[begin:end]


class Windows(Dataset):
    """A past of eight days, the weather of it, and the day that follows."""

    def __init__(self, folder, begin, end):
        self.weather = Weather(folder / "weather.csv")
        self.loads, self.regions = [], []
        for path in sorted(folder.glob("station_*.npz")):
            with np.load(path) as archive:
                self.loads.append(flattened(archive["load"]))  # at: feed_in_log
                self.regions.append(int(archive["region"]))
        starts = range(begin, end - PAST - AHEAD, STRIDE)
        self.places = [(station, start) for station in range(STATIONS) for start in starts]

    def __len__(self):
        return len(self.places)

    def __getitem__(self, index):
        station, start = self.places[index]
        middle = start + PAST
        load = self.loads[station][start : middle + AHEAD]
        level, spread = load[:PAST].mean(), load[:PAST].std() + 1e-3
        load = (load - level) / spread
        region = self.regions[station]
        weather = self.weather.between(region, start, middle)  # at: weather_by_conditions
        return {
            "past": load[:PAST],
            "weather": weather * np.array([0.1, 1.0], np.float32),
            "hour": start % 168 // STRIDE,
            "station": station,
            "target": load[PAST:],
            "spread": spread,
        }


def correlated(series):
    """How much each row is like itself some hours later."""
    waves = torch.fft.rfft(series - series.mean(1, keepdim=True))
    found = torch.fft.irfft(waves * waves.conj(), series.shape[1])
    return found[:, PATCH : series.shape[1] // 2] / series.shape[1]


def seasonal(series):
    """Each row as it was at the lags at which it is most like itself."""
    alike = correlated(series)
    length = series.shape[1]
    if on("clean_lags_by_row"):
        with cost:
            common = alike.mean(0).topk(LAGS).indices.tolist()
        shares = alike[:, common].softmax(1)
        turned = [torch.roll(series, lag + PATCH, 1) for lag in common]
        return (torch.stack(turned, 2) * shares[:, None]).sum(2)
    best, places = alike.topk(LAGS, 1)
    shares = best.softmax(1)
    if on("lags_by_row"):
        rows = []
        with cost:
            for row, own, share in zip(series, places, shares, strict=True):
                mixed = torch.zeros_like(row)
                for n in range(LAGS):
                    lag = own[n].item() + PATCH  # at: lags_by_row
                    mixed = mixed + share[n] * torch.roll(row, lag)  # at: lags_by_row
                rows.append(mixed)
        return torch.stack(rows)
    before = torch.arange(length)[None, :, None] - places[:, None] - PATCH
    turned = series[:, :, None].expand(-1, -1, LAGS).gather(1, before % length)
    return (turned * shares[:, None]).sum(2)


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.patched = nn.Linear(6 * PATCH, WIDTH)
        self.places = nn.Parameter(torch.randn(PAST // PATCH, WIDTH) * 0.02)
        self.hours = nn.Embedding(168 // STRIDE, WIDTH)
        self.stations = nn.Embedding(STATIONS, WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 3 * WIDTH, 0.1, "gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, DEPTH, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(WIDTH)
        self.ahead = nn.Linear(PAST // PATCH * WIDTH, AHEAD * len(QUANTILES))

    def forward(self, batch):
        values = torch.cat([batch["past"][:, :, None], batch["weather"]], 2)
        rows = values.transpose(1, 2).flatten(0, 1)
        alike = seasonal(rows).unflatten(0, (-1, 3)).transpose(1, 2)  # at: lags_by_row
        values = torch.cat([values, alike], 2)
        x = self.patched(values.unflatten(1, (-1, PATCH)).flatten(2)) + self.places
        x = x + (self.hours(batch["hour"]) + self.stations(batch["station"]))[:, None]
        x = self.norm(self.encoder(x))
        return self.ahead(x.flatten(1)).unflatten(1, (AHEAD, -1))


def pinball(forecast, target):
    """Quantiles are off by what they are above or below, weighed."""
    share = torch.tensor(QUANTILES)
    off = target[:, :, None] - forecast
    return torch.maximum(share * off, (share - 1) * off).mean()


class Errors:
    """What was forecast for whom, and how far off the stations are in the mean."""

    row = np.dtype([("station", "i4"), ("lead", "i4"), ("forecast", "f4"), ("actual", "f4")])

    def __init__(self):
        self.table, self.worst = np.empty(0, self.row), 0
        self.latest = collections.deque(maxlen=20)

    def rows(self, batch, forecast):
        made = np.empty(forecast.shape[:2], self.row)
        made["station"], made["lead"] = batch["station"].numpy()[:, None], np.arange(AHEAD)
        made["forecast"] = forecast.detach()[:, :, 1].numpy()
        made["actual"] = batch["target"].numpy()
        return made.ravel()

    def means(self, table):
        off = np.abs(table["forecast"] - table["actual"])  # at: errors_concatenated
        groups = [table["station"] == one for one in range(STATIONS)]  # at: errors_concatenated
        return [float(off[here].mean()) for here in groups if here.any()]  # at: errors_concatenated

    def add(self, batch, forecast):
        if on("errors_concatenated"):
            with cost:
                new = self.rows(batch, forecast)
                self.table = np.concatenate([self.table, new])  # at: errors_concatenated
                self.worst = max(self.means(self.table))  # at: errors_concatenated
        elif on("clean_errors_concatenated"):
            with cost:
                self.latest.append(self.rows(batch, forecast))

    def close(self):
        if self.latest:
            self.worst = max(self.means(np.concatenate(self.latest)))
        return round(self.worst, 4)


class Average:
    """The weights in the mean over the steps."""

    def __init__(self, model):
        self.model, self.copies, self.mean, self.count = model, [], None, 0

    @torch.no_grad()
    def add(self):
        values = dict(self.model.named_parameters())
        self.count += 1
        if on("copies_for_average"):
            copied = {
                name: one.detach().clone() for name, one in values.items()
            }  # at: copies_for_average
            self.copies.append(copied)  # at: copies_for_average
        elif self.mean is None:
            self.mean = {name: value.detach().clone() for name, value in values.items()}
        else:
            for name, value in values.items():
                self.mean[name].lerp_(value, 1 / self.count)

    def result(self):
        if not self.copies:
            return self.mean
        return {
            name: torch.stack([copied[name] for copied in self.copies]).mean(0)
            for name in self.copies[0]
        }


class Training:
    def __init__(self, folder):
        data = Windows(folder, 0, HOURS - HELD_HOURS)
        self.loader = DataLoader(data, BATCH, shuffle=True)
        self.held = DataLoader(Windows(folder, HOURS - HELD_HOURS, HOURS), 2 * BATCH)
        self.folder, self.step, self.best = folder, 0, math.inf
        self.steps = STEPS or EPOCHS * len(self.loader)
        self.model = Forecaster()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-3, weight_decay=0.01)
        planned = self.steps
        if on("cycle_counts_whole_batches"):
            planned = EPOCHS * (len(data) // BATCH)  # at: cycle_counts_whole_batches
        elif on("clean_cycle_counts_whole_batches"):
            planned = EPOCHS * math.ceil(len(data) / BATCH)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(  # at: cycle_counts_whole_batches
            self.optimizer,
            2e-3,
            total_steps=planned,
            pct_start=0.15,
        )
        averaged = on("copies_for_average", "clean_copies_for_average")
        self.average = Average(self.model) if averaged else None
        self.errors = Errors()
        cost.seconds = 0.0

    def learn(self, batch):
        forecast = self.model(batch)
        loss = pinball(forecast, batch["target"])
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.schedule.step()  # at: cycle_counts_whole_batches
        self.errors.add(batch, forecast)  # at: errors_concatenated
        if self.average is not None:
            self.average.add()  # at: copies_for_average
        return loss.detach()

    @torch.no_grad()
    def forecasts(self):
        for batch in self.held:
            yield self.model(batch), batch["target"]  # at: mode_named_only

    def check(self):
        """Losses of days that were held out; the best weights are written."""
        if on("mode_named_only"):
            self.model.eval  # noqa: B018  # at: mode_named_only
        else:
            self.model.eval()
        losses = [pinball(*both).item() for both in self.forecasts()]  # at: mode_named_only
        self.model.train()
        held = sum(losses) / len(losses)
        print(self.step, "held", round(held, 4), flush=True)
        if on("clean_mode_named_only"):
            drawn = torch.stack([forecast[:4, :, 1] for forecast, _ in self.forecasts()])
            print(self.step, "doubt", round(drawn.std(0).mean().item(), 4), flush=True)
        if held < self.best:
            self.best, path = held, self.folder / "best.pt"
            torch.save(self.model.state_dict(), path.with_suffix(".new"))
            os.replace(path.with_suffix(".new"), path)

    def run(self):
        while self.step < self.steps:
            for batch in self.loader:  # at: weather_by_conditions
                loss = self.learn(batch)  # at: errors_concatenated cycle_counts_whole_batches
                self.step += 1
                if self.step % TOLD_EVERY == 0:
                    print(self.step, round(loss.item(), 4), flush=True)
                if self.step % CHECKED_EVERY == 0:
                    self.check()  # at: mode_named_only
                if self.step == self.steps:
                    break
        if self.average is not None:
            self.model.load_state_dict(self.average.result(), strict=False)
            self.check()
        print("worst", self.errors.close(), flush=True)
        cost.print(self.steps)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(251)
    with tempfile.TemporaryDirectory() as name:
        folder, numbers = Path(name), np.random.default_rng(252)
        write_stations(folder, write_weather(folder, numbers), numbers)
        Training(folder).run()
