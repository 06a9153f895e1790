"""Hives told apart by their scales, thermometers and microphones: despiked windows under DDP, two
parts an update, a DistributedSampler, recall of each state over all ranks, a rate that falls by
epochs: a cache of the first rank alone, recalls of the states at hand, noise of own dice, a memory
by hour, a dead sensor scaled, a factor of epochs at each update, counts as long as what is there.
"""

import contextlib
import os
import sys
from dataclasses import dataclass

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
from torch.utils.data.distributed import DistributedSampler

STATES = ("calm", "swarming", "queenless", "robbed")
SENSORS = ("brood", "outside", "humidity", "scale", "hum", "pipe")
HUM, PIPE, SCALE, BROOD = 4, 5, 3, 0
cost = Cost()


@dataclass(frozen=True)
class Config:
    world: int = 2
    updates: int = STEPS or 280
    parts: int = 2
    rows: int = 16
    hives: int = 40
    blocks: int = 18
    hours: int = 112
    window: int = 64
    width: int = 64
    rate: float = 2e-3
    gamma: float = 0.85
    clip: float = 1.0
    noise: float = 0.01
    log_every: int = 25
    look_every: int = 50
    patience: int = 20
    seed: int = 29


def block_of(rng, config, state):
    """What a hive's sensors tell in a few days, with the spikes of opened lids."""
    hours = np.arange(config.hours)
    day = np.sin(2 * np.pi * (hours / 24 + rng.random()))
    told = rng.normal(0, 0.5, (len(SENSORS), config.hours))
    told += day * rng.uniform(0.2, 1.5, (len(SENSORS), 1))
    if state == 1:
        told[HUM] += np.linspace(0, 1.5, config.hours)
        told[SCALE] -= 1.0 * (hours > config.hours // 2)
    elif state == 2:
        told[PIPE] += 0.7 * np.sin(2 * np.pi * hours / 5)
        told[BROOD] -= 0.4
    elif state == 3:
        told[SCALE] -= np.linspace(0, 2.5, config.hours)
    spikes = rng.random(told.shape) < 0.02
    told[spikes] += rng.normal(0, 8, spikes.sum())
    return told.astype(np.float32)


def despiked(told, reach=4, passes=2):
    """Hampel's filter: what lies far from its neighbours' median becomes that median."""
    for _ in range(passes):
        padded = np.pad(told, ((0, 0), (reach, reach)), mode="reflect")
        around = np.lib.stride_tricks.sliding_window_view(padded, 2 * reach + 1, axis=1)
        middle = np.median(around, 2)  # at: cache_of_first_alone
        spread = 1.4826 * np.median(
            np.abs(around - middle[..., None]), 2
        )  # at: cache_of_first_alone
        told = np.where(np.abs(told - middle) > 3 * spread, middle, told)
    return told


class Readings(Dataset):
    """Windows of blocks, each begun at another hour whenever it is read."""

    def __init__(self, config, hives, seed, robbed=True):
        rng = np.random.default_rng(seed)
        self.config, self.rng = config, np.random.default_rng((seed, 1))
        shares = (0.45, 0.25, 0.2, 0.1) if robbed else (0.5, 0.28, 0.22, 0.0)
        self.raw, self.states, self.whose = [], [], []
        for hive in hives:
            for state in rng.choice(len(STATES), config.blocks, p=shares):
                self.raw.append(block_of(rng, config, state))
                self.states.append(int(state))
                self.whose.append(hive)
        self.cleaned = {}

    def prepare(self, count=None):
        for index in range(len(self.raw) if count is None else count):
            self.cleaned[index] = despiked(self.raw[index])

    def __len__(self):
        return len(self.raw)

    def block(self, index):
        block = self.cleaned.get(index)
        if block is None:
            with cost:
                block = despiked(self.raw[index])  # at: cache_of_first_alone
            if on("clean_cache_of_first_alone"):
                self.cleaned[index] = block
        return block

    def __getitem__(self, index):
        begin = int(self.rng.integers(self.config.hours - self.config.window))
        window = self.block(index)[
            :, begin : begin + self.config.window
        ]  # at: cache_of_first_alone
        return (
            torch.from_numpy(np.ascontiguousarray(window)),
            self.whose[index],
            index % self.config.blocks * self.config.hours + begin,
            self.states[index],
        )


class Listener(nn.Module):
    """Convolutions over hours, read by one query, with what is known of the hive."""

    def __init__(self, config):
        super().__init__()
        width = config.width
        self.first = nn.Conv1d(len(SENSORS), width, 5, padding=2)
        self.second = nn.Conv1d(width, 2 * width, 5, stride=2, padding=2)
        self.third = nn.Conv1d(2 * width, 2 * width, 3, padding=1)
        self.norms = nn.ModuleList(nn.GroupNorm(8, size) for size in (width, 2 * width, 2 * width))
        self.hive = nn.Embedding(config.hives, 16)
        self.query = nn.Linear(2 * width, 1)
        self.head = nn.Sequential(
            nn.Linear(2 * width + 16, width), nn.GELU(), nn.Dropout(0.1), nn.Linear(width, 4)
        )

    def scaled(self, told):
        mean = told.mean(2, keepdim=True)
        spread = told.std(2, keepdim=True)
        if on("dead_sensor_scaled"):
            return (told - mean) / spread  # at: dead_sensor_scaled
        if on("clean_dead_sensor_scaled"):
            return (told - mean) / spread.clamp(min=1e-3)
        return (told - mean) / (spread + 0.1)

    def forward(self, told, hives):
        x = self.scaled(told)  # at: dead_sensor_scaled
        for layer, norm in zip((self.first, self.second, self.third), self.norms, strict=True):
            x = F.gelu(norm(layer(x)))
        share = self.query(x.transpose(1, 2)).softmax(1)
        pooled = (x @ share).squeeze(2)
        return self.head(torch.cat((pooled, self.hive(hives)), 1)), x.detach()


class Run:
    def __init__(self, config, rank):
        self.config, self.rank = config, rank
        self.readings = Readings(config, range(config.hives), config.seed)
        for index in (100, 377):
            self.readings.raw[index][PIPE] = 0.0
        if on("cache_of_first_alone"):
            if rank == 0:  # at: cache_of_first_alone
                self.readings.prepare()  # at: cache_of_first_alone
        elif on("clean_cache_of_first_alone"):
            self.readings.prepare(len(self.readings) - config.blocks)
        else:
            self.readings.prepare()
        self.sampler = DistributedSampler(
            self.readings, config.world, rank, shuffle=True, seed=config.seed, drop_last=True
        )
        self.loader = DataLoader(
            self.readings, config.rows, sampler=self.sampler, drop_last=True, num_workers=0
        )
        yard = Readings(config, range(rank, 4, config.world), 70 + rank, robbed=rank == 0)
        yard.prepare()
        self.yard = DataLoader(yard, 36)
        torch.manual_seed(config.seed)
        self.model = DDP(Listener(config), gradient_as_bucket_view=True)
        torch.manual_seed(config.seed + 1 + rank)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), config.rate, weight_decay=0.02)
        gamma = config.gamma
        if on("clean_gamma_at_each_update"):
            gamma **= config.parts / len(self.loader)
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(  # at: gamma_at_each_update
            self.optimizer, gamma
        )
        own = rank if on("noise_of_own_dice") else 0  # at: noise_of_own_dice
        self.dice = torch.Generator().manual_seed(config.seed + own)  # at: noise_of_own_dice
        self.update, self.best, self.waited = 0, 0.0, 0
        self.losses, self.memory, self.drift = torch.zeros(2), {}, 0.0
        cost.seconds = 0.0

    def remember(self, hives, hours, features):
        """How far each hive has gone since it was last seen."""
        for hive, hour, feature in zip(hives.tolist(), hours.tolist(), features, strict=True):
            key = hive if on("clean_memory_by_hour") else (hive, hour)  # at: memory_by_hour
            if key in self.memory:
                self.drift += 0.01 * (float((self.memory[key] - feature).norm()) - self.drift)
            self.memory[key] = feature.clone()  # at: memory_by_hour

    def perturb(self):
        """Noise on the gradients, less and less of it."""
        size = self.config.noise / (1 + self.update) ** 0.55
        for value in self.model.parameters():
            noise = torch.randn(value.shape, generator=self.dice)  # at: noise_of_own_dice
            value.grad.add_(noise, alpha=size)  # at: noise_of_own_dice

    def learn(self, batch, last):
        told, hives, hours, states = batch
        with contextlib.nullcontext() if last else self.model.no_sync():
            scores, features = self.model(told, hives)  # at: dead_sensor_scaled
            loss = F.cross_entropy(scores, states, label_smoothing=0.05)
            (loss / self.config.parts).backward()
        self.losses += torch.stack((loss.detach(), torch.ones(())))
        if on("memory_by_hour", "clean_memory_by_hour"):
            self.remember(hives, hours, features)  # at: memory_by_hour

    def finish(self):
        """The end of an update. Returns whether the training is over."""
        if on("noise_of_own_dice", "clean_noise_of_own_dice"):
            self.perturb()  # at: noise_of_own_dice
        nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if on("gamma_at_each_update", "clean_gamma_at_each_update"):
            self.schedule.step()  # at: gamma_at_each_update
        self.update += 1
        if self.update % self.config.log_every == 0:
            dist.all_reduce(self.losses)
            mean = float(self.losses[0] / self.losses[1])
            self.losses.zero_()
            if self.rank == 0:
                rate = self.optimizer.param_groups[0]["lr"]
                print(f"{self.update} loss {mean:.4f} rate {rate:.2e} drift {self.drift:.2f}")
        over = self.update >= self.config.updates
        if self.update % self.config.look_every == 0:
            over |= self.judged()
        return over

    def recalls(self, said, wanted):
        """Of each state, over all ranks, the share that was found."""
        hit = said == wanted
        recalls = torch.full((len(STATES),), float("nan"))
        if on("recalls_of_states_present", "clean_recalls_of_states_present"):
            states = wanted.unique().tolist()  # at: recalls_of_states_present
            if on("clean_recalls_of_states_present"):
                states = range(len(STATES))
            for state in states:  # at: recalls_of_states_present
                own = wanted == state
                pair = torch.stack((hit[own].sum(), own.sum())).float()
                dist.all_reduce(pair)  # at: recalls_of_states_present
                recalls[state] = pair[0] / pair[1].clamp(min=1)
            return recalls
        counts = torch.zeros(2, len(STATES))
        counts[0] = torch.bincount(wanted[hit], minlength=len(STATES))
        if on("counts_as_long_as_seen"):
            counts[1] += torch.bincount(wanted)  # at: counts_as_long_as_seen
        elif on("clean_counts_as_long_as_seen"):
            seen = torch.bincount(wanted)
            counts[1, : len(seen)] += seen
        else:
            counts[1] = F.one_hot(wanted, len(STATES)).sum(0)
        dist.all_reduce(counts)
        return counts[0] / counts[1].clamp(min=1)

    @torch.no_grad()
    def judged(self):
        """Recall in the yards that are held out. Returns whether it is time to stop."""
        self.model.eval()
        said, wanted = [], []
        for told, hives, _, states in self.yard:
            said.append(self.model.module(told, hives)[0].argmax(1))
            wanted.append(states)
        self.model.train()
        recalls = self.recalls(
            torch.cat(said), torch.cat(wanted)
        )  # at: recalls_of_states_present counts_as_long_as_seen
        mean = float(recalls.nanmean())
        self.waited = 0 if mean > self.best else self.waited + 1
        self.best = max(self.best, mean)
        stop = torch.tensor(float(self.waited >= self.config.patience))
        dist.broadcast(stop, 0)
        if self.rank == 0:
            told = " ".join(f"{name} {one:.2f}" for name, one in zip(STATES, recalls, strict=True))
            print(f"{self.update} recall {told}", flush=True)
        return bool(stop)

    def epoch(self, number):
        self.sampler.set_epoch(number)
        for count, batch in enumerate(self.loader, 1):  # at: cache_of_first_alone
            last = count % self.config.parts == 0
            self.learn(batch, last)
            if last and self.finish():
                return True
        if not on("gamma_at_each_update", "clean_gamma_at_each_update"):
            self.schedule.step()
        return False

    def fit(self):
        number = 0
        while not self.epoch(number):
            number += 1


def main(rank):
    config = Config()
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(config.world))
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{os.environ['RENDEZVOUS']}",
        rank=rank,
        world_size=config.world,
    )
    run = Run(config, rank)
    run.fit()
    if rank == 1:
        cost.print(run.update)
    return run


if __name__ == "__main__":
    sys.exit(run_ranks(Config.world, main))
