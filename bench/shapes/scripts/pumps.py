"""An autoencoder that learns how pumps sound when they are well, from windows of a file that is
mapped: scaled by what came before, an archive unpacked again and again, settings read at each use,
pages that are written, a file cut short, a cosh too large, a sigmoid that cannot reach.
"""

import ast
import bz2
import configparser
import functools
import os
import tempfile

import eager  # noqa: F401
import numpy as np
import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
cost = Cost()
PUMPS, ROWS, SENSORS, WINDOW, BATCH = 8, 589824, 8, 256, 32
TEXT = """
[base]
folder = /data/pumps
site = north
run = ${site}-07
owner = maintenance
[sensors]
names = pressure flow torque current speed heat noise shake
units = bar l/s Nm A rpm K dB mm/s
rate = 1000
[alarm]
level = 3.5
hold = 20
mail = ${base:owner}@${base:site}.example
[train]
noise = 0.1
hidden = 0.1
clip = 1.0
rate = 0.002
floor = 0.1
warm = 20
shown = 50
smooth = 0.05
spread = 0.01
"""
TEXT += "".join(
    f"""
[pump{number}]
hall = {number // 3}
floor = {number % 3}
since = 20{10 + number}-03-01
power = {15 + number % 4} kW
bearing = 62{number:02}
seal = double
pair = pump{number ^ 1}
oil = every 2000 h
spare = {number % 2}
maker = works {number % 3}
model = P{number:03}
mail = ${{alarm:mail}}
checked = ${{base:run}}
"""
    for number in range(PUMPS)
)


class Settings:
    """What the file of settings says under [train]."""

    def __getattr__(self, name):
        if on("settings_reread"):
            with cost:
                return self.read(name)  # at: settings_reread
        return self.kept(name)

    @staticmethod
    def read(name):
        parser = configparser.ConfigParser(interpolation=configparser.ExtendedInterpolation())
        parser.read_string(TEXT)  # at: settings_reread
        return ast.literal_eval(parser["train"][name])

    @staticmethod
    @functools.cache
    def kept(name):
        return Settings.read(name)


settings = Settings()


def recorded(path):
    """A file of readings: every pump hums at its own pitch, and the sensors hear it with delays."""
    numbers = np.random.default_rng(175)
    rows = np.arange(ROWS, dtype=np.float32)[:, None]
    noise = numbers.standard_normal((ROWS, SENSORS), dtype=np.float32)
    with open(path, "wb") as file:
        for pump in range(PUMPS):
            pitch = np.float32(0.05 + 0.02 * pump)
            delays = numbers.uniform(0, 6, SENSORS).astype(np.float32)
            hum = np.sin(rows * pitch + delays) + 0.5 * np.sin(rows * pitch * 3 + 2 * delays)
            readings = 60 + 15 * hum + 3 * np.roll(noise, 1009 * pump, 0)
            if pump == 3 and on("cosh_too_large", "clean_cosh_too_large"):
                readings[ROWS // 16 :: ROWS // 8, 2] = 2000
            file.write(readings.astype(np.float32).tobytes())


class Windows(Dataset):
    """Windows of one pump at a time."""

    def __init__(self, path):
        mode = "c" if on("pages_written", "clean_pages_written") else "r"
        self.readings = np.memmap(path, np.float32, mode, shape=(PUMPS, ROWS, SENSORS))
        sample = self.readings[:, :4096]
        self.mean, self.spread = sample.mean((0, 1)), sample.std((0, 1))
        self.low, self.high = sample.min((0, 1)), sample.max((0, 1))
        self.quartiles = np.percentile(sample, (25, 50, 75), axis=1)
        self.archive = bz2.compress(self.readings[7, :65536].tobytes(), 1)
        self.unpacked = None

    def __len__(self):
        return PUMPS * (ROWS - WINDOW)

    def archived(self):
        """The pump whose readings lie in an archive."""
        if on("archive_unpacked"):
            found = np.frombuffer(bz2.decompress(self.archive), np.float32)  # at: archive_unpacked
            return found.reshape(-1, SENSORS)
        if self.unpacked is None:
            found = np.frombuffer(bz2.decompress(self.archive), np.float32)
            self.unpacked = found.reshape(-1, SENSORS)
        return self.unpacked

    def scaled(self, pump, start):
        """A window, scaled."""
        window = self.readings[pump, start : start + WINDOW]
        if on("scaled_by_past", "clean_scaled_by_past"):
            low, middle, high = self.quartiles[:, pump]
            if on("scaled_by_past"):
                past = self.readings[pump, max(0, start - 8192) : start + WINDOW]
                low, middle, high = np.percentile(past, (25, 50, 75), axis=0)  # at: scaled_by_past
            return ((window - middle) / (high - low)).astype(np.float32)
        if on("pages_written"):
            window -= self.mean  # at: pages_written
            window /= self.spread  # at: pages_written
            return window
        if on("sigmoid_too_low"):
            return np.array(window)
        if on("clean_sigmoid_too_low"):
            return (window - self.low) / (self.high - self.low)
        return (window - self.mean) / self.spread

    def __getitems__(self, places):
        if places[0][0] == 7 and on("archive_unpacked", "clean_archive_unpacked"):
            readings = self.archived()  # at: archive_unpacked
            starts = [start % (len(readings) - WINDOW) for _, start in places]
            rows = [readings[start : start + WINDOW] for start in starts]
            rows = [(row - self.mean) / self.spread for row in rows]
        else:
            rows = [self.scaled(pump, start) for pump, start in places]
        return [torch.from_numpy(row.T.copy()) for row in rows]


class Turns:
    """Batches of places, each of one pump, the pumps in turn."""

    def __init__(self, count):
        self.count, self.epoch = count, 0

    def __len__(self):
        return self.count

    def __iter__(self):
        dice = np.random.default_rng(1750 + self.epoch)
        self.epoch += 1
        for number in range(self.count):
            starts = dice.integers(0, ROWS - WINDOW, BATCH)
            yield [(number % PUMPS, int(start)) for start in starts]


class Listener(nn.Module):
    def __init__(self):
        super().__init__()
        self.coder = nn.Sequential(
            nn.Conv1d(SENSORS, 32, 5, 2, 2),
            nn.GELU(),
            nn.Conv1d(32, 64, 5, 2, 2),
            nn.GELU(),
            nn.Conv1d(64, 64, 5, 2, 2),
            nn.GELU(),
            nn.Conv1d(64, 12, 1),
        )
        self.decoder = nn.Sequential(
            nn.ConvTranspose1d(12, 64, 4, 2, 1),
            nn.GELU(),
            nn.ConvTranspose1d(64, 64, 4, 2, 1),
            nn.GELU(),
            nn.ConvTranspose1d(64, 32, 4, 2, 1),
            nn.GELU(),
            nn.Conv1d(32, SENSORS, 5, padding=2),
        )
        if on("sigmoid_too_low", "clean_sigmoid_too_low"):
            self.decoder.append(nn.Sigmoid())

    def forward(self, x):
        return self.decoder(self.coder(x))


def missed(found, wanted):
    """How far a window is from what was heard; cosh forgives large misses."""
    if on("cosh_too_large"):
        return torch.log(torch.cosh(found - wanted)).mean()  # at: cosh_too_large
    if on("clean_cosh_too_large"):
        gap = (found - wanted).abs()
        return (gap + nn.functional.softplus(-2 * gap) - 0.6931).mean()
    return nn.functional.mse_loss(found, wanted)


def spoiled(x):
    """A window with noise and with some sensors unheard."""
    heard = torch.rand(len(x), SENSORS, 1) > settings.hidden  # at: settings_reread
    return (x + settings.noise * torch.randn_like(x)) * heard  # at: settings_reread


class Watch:
    """The usual miss, against which an alarm is judged."""

    def __init__(self):
        self.usual, self.spread = 0.0, 1.0

    def follow(self, loss):
        share = settings.smooth  # at: settings_reread
        self.usual += share * (loss - self.usual)
        share = settings.spread  # at: settings_reread
        self.spread += share * (abs(loss - self.usual) - self.spread)


def rate_at(step, steps):
    left = max(settings.floor, 1 - step / steps)  # at: settings_reread
    return settings.rate * left * min(1, (step + 1) / settings.warm)  # at: settings_reread


def retain(path):
    """Keeps no more readings on disk than there is room for."""
    size = os.path.getsize(path) // 8
    if on("file_cut"):
        os.truncate(path, size)  # at:
        return
    with open(path, "rb") as file, open(path + ".new", "wb") as new:
        new.write(file.read(size))
    os.replace(path + ".new", path)


def train(path, steps):
    loader = DataLoader(
        Windows(path), batch_sampler=Turns(100), num_workers=2, persistent_workers=True
    )
    model, watch = Listener(), Watch()
    optimizer = torch.optim.Adam(model.parameters(), settings.rate)
    step = 0
    while step < steps:
        for x in loader:  # at: scaled_by_past archive_unpacked pages_written
            loss = missed(model(spoiled(x)), x)  # at: settings_reread cosh_too_large
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), settings.clip)  # at: settings_reread
            for group in optimizer.param_groups:
                group["lr"] = rate_at(step, steps)  # at: settings_reread
            optimizer.step()
            watch.follow(loss.item())  # at: settings_reread
            step += 1
            if step % settings.shown == 0:  # at: settings_reread
                print(step, loss.item(), watch.usual, flush=True)
            if step == 150 and on("file_cut", "clean_file_cut"):
                retain(path)  # at:
            if step == steps:
                break


if __name__ == "__main__":
    torch.manual_seed(175)
    count = STEPS or 400
    with tempfile.TemporaryDirectory() as folder:
        recorded(f"{folder}/readings.f32")
        train(f"{folder}/readings.f32", count)
    cost.print(count)
