"""Rovers that learn by PPO to reach beacons: worlds in NumPy that move together, episodes of which
films are kept, several epochs of minibatches over what was gathered.
"""

import inspect
import multiprocessing
import sys

import eager  # noqa: F401
import numpy as np
import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.distributions import Normal
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(171)
cost = Cost()
COUNT, LENGTH, EPOCHS, PARTS = 24, 64, 3, 4
DISCOUNT, TRACE, CLIP = 0.97, 0.95, 0.2
NEARLY_ONE = 1 - 1e-6


class Plain:
    """Rovers on a plain with rocks."""

    def __init__(self, count, seed):
        self.count, self.seed, self.clock = count, seed, 0
        numbers = np.random.default_rng(seed)
        self.rocks = numbers.uniform(-4, 4, (6, 2))
        self.own = [np.random.default_rng([seed, n]) for n in range(count)]
        self.place, self.speed, self.beacon = np.zeros((3, count, 2))
        self.age = np.zeros(count, np.int64)
        self.restart(np.ones(count, bool))

    def restart(self, which):
        self.place[which] = self.draw(-4, 4)[which]
        self.beacon[which] = self.draw(-4, 4)[which]
        self.speed[which], self.age[which] = 0, 0

    def draw(self, low, high):
        return np.stack([numbers.uniform(low, high, 2) for numbers in self.own])

    def disturbed(self, kind, size):
        """A disturbance of each rover, the same whenever a run is repeated."""
        if not on("generators_made"):
            return np.stack([numbers.normal(0, size, 2) for numbers in self.own])
        with cost:
            rows = []
            for n in range(self.count):
                seed = [self.seed, n, self.clock, kind]
                numbers = np.random.default_rng(seed)  # at: generators_made
                rows.append(numbers.normal(0, size, 2))
            return np.stack(rows)

    def view(self):
        ahead = self.beacon - self.place + self.disturbed(0, 0.02)  # at: generators_made
        rocks = (self.rocks[None] - self.place[:, None]).reshape(self.count, -1)
        parts = [ahead, self.speed, rocks, self.age[:, None] / 60]
        return np.concatenate(parts, 1).astype(np.float32)

    def step(self, actions):
        slip = self.disturbed(1, 0.01)  # at: generators_made
        self.clock += 1
        self.age += 1
        self.speed = 0.8 * self.speed + 0.2 * actions
        self.place = self.place + 0.4 * self.speed + slip
        far = np.linalg.norm(self.beacon - self.place, axis=1)
        near = np.linalg.norm(self.rocks[None] - self.place[:, None], axis=2).min(1)
        rewards = -0.03 * far - 0.02 * (near < 0.5)
        done = (far < 0.3) | (self.age >= 60)
        if done.any():
            self.restart(done)
        return self.view(), rewards, done  # at: generators_made


def serve(pipe, count, seed):
    plain = Plain(count, seed)
    pipe.send(plain.view())
    while True:
        actions = pipe.recv()
        if on("remote_gone") and plain.clock == 700:
            raise RuntimeError("simulator: licence has expired")  # at: remote_gone
        pipe.send(plain.step(actions))


class Remote:
    """Rovers in a process of their own."""

    def __init__(self, count, seed):
        context = multiprocessing.get_context("fork")
        self.pipe, self.far = context.Pipe()
        self.process = context.Process(target=serve, args=(self.far, count, seed), daemon=True)
        self.process.start()
        if not on("remote_gone"):
            self.far.close()
        self.first = self.pipe.recv()

    def view(self):
        return self.first

    def step(self, actions):
        self.pipe.send(actions)
        return self.pipe.recv()  # at: remote_gone


class Worlds:
    """All rovers, here and elsewhere."""

    def __init__(self):
        if on("remote_gone", "clean_remote_gone"):
            self.groups, self.ends = [Plain(COUNT - 8, 17), Remote(8, 18)], [COUNT - 8]
        else:
            self.groups, self.ends = [Plain(COUNT, 17)], []

    def view(self):
        return np.concatenate([group.view() for group in self.groups])

    def step(self, actions):
        shares = np.split(actions, self.ends)
        told = [
            group.step(share)  # at: remote_gone generators_made
            for group, share in zip(self.groups, shares, strict=True)
        ]
        return [np.concatenate(parts) for parts in zip(*told, strict=True)]


class Recorder:
    """Film of the first rover's last episode."""

    def __init__(self, side=192):
        self.side, self.frames, self.film = side, [], []

    def take(self, plain):
        frame = np.full((self.side, self.side, 3), 30, np.uint8)
        for colour, spots in enumerate((plain.rocks, plain.place[:1], plain.beacon[:1])):
            y, x = ((spots / 10 + 0.5) * (self.side - 1)).clip(0, self.side - 1).astype(int).T
            frame[y, x, colour] = 250
        self.frames.append(frame)  # at: frames_kept
        if plain.age[0] == 0:
            self.film = self.frames[-60:]
            if not on("frames_kept"):
                self.frames = []


class Journal:
    """Averages of what is noted, under the name of who notes it."""

    def __init__(self):
        self.kept = {}

    def note(self, name, value):
        if on("caller_looked_up"):
            with cost:
                who = inspect.stack()[1].function  # at: caller_looked_up
        else:
            who = sys._getframe(1).f_code.co_name
        key = f"{who}/{name}"
        self.kept[key] = 0.95 * self.kept.get(key, value) + 0.05 * value


def layers(seen, given, width=256):
    first, middle = nn.Linear(seen, width), nn.Linear(width, width)
    return nn.Sequential(first, nn.Tanh(), middle, nn.Tanh(), nn.Linear(width, given))


class Agent(nn.Module):
    def __init__(self, seen, moves):
        super().__init__()
        self.actor, self.critic = layers(seen, moves), layers(seen, 1)
        self.spread = nn.Parameter(torch.full((moves,), 0.6))

    def forward(self, views):
        return Normal(self.actor(views), self.spread.exp()), self.critic(views)[:, 0]


class Scale:
    """Mean and variance of the views so far."""

    def __init__(self, seen):
        self.mean, self.variance, self.count = np.zeros(seen), np.ones(seen), 1e-4

    def __call__(self, views):
        mean, variance, count = views.mean(0), views.var(0), len(views)
        gap, total = mean - self.mean, self.count + count
        between = gap**2 * self.count * count / total
        self.variance = (self.variance * self.count + variance * count + between) / total
        self.mean, self.count = self.mean + gap * count / total, total
        scaled = (views - self.mean) / np.sqrt(self.variance + 1e-8)
        return torch.from_numpy(scaled.clip(-5, 5).astype(np.float32))


def odds_of(policy, actions):
    """Logarithms of the odds of squashed actions."""
    if not on("atanh_of_one"):
        actions = actions.clamp(-NEARLY_ONE, NEARLY_ONE)
    raw = torch.atanh(actions)  # at: atanh_of_one
    squashed = torch.log(1 - actions**2 + 1e-6)
    return (policy.log_prob(raw) - squashed).sum(1)  # at: atanh_of_one


def advantages(rewards, values, ends, last):
    gains, gain = np.zeros_like(rewards), 0.0
    for t in reversed(range(len(rewards))):
        after = last if t == len(rewards) - 1 else values[t + 1]
        missed = rewards[t] + DISCOUNT * after * (1 - ends[t]) - values[t]
        gain = missed + DISCOUNT * TRACE * (1 - ends[t]) * gain
        gains[t] = gain
    return gains


def surrogate(ratio, gains):
    low, high = 1 - CLIP, 1 + CLIP
    if on("clip_bounds_swapped"):
        low, high = high, low
    if on("clip_bounds_swapped", "clean_clip_bounds_swapped"):
        return -(ratio.clamp(low, high) * gains).mean()  # at: clip_bounds_swapped
    return -torch.minimum(ratio * gains, ratio.clamp(low, high) * gains).mean()


def parts_of(rollout, rows):
    """Minibatches of one epoch."""
    if on("rows_from_rollout"):
        yield from DataLoader(TensorDataset(*rollout), rows, shuffle=True)  # at: rows_from_rollout
    elif on("clean_rows_from_rollout"):
        picks = BatchSampler(RandomSampler(rollout[0]), rows, drop_last=True)
        yield from DataLoader(TensorDataset(*rollout), batch_size=None, sampler=picks)
    else:
        for picks in torch.randperm(len(rollout[0])).split(rows):
            yield [values[picks] for values in rollout]


class Trainer:
    def __init__(self, steps):
        self.steps, self.done = steps, 0
        self.worlds, self.recorder, self.journal = Worlds(), Recorder(), Journal()
        self.views = self.worlds.view()
        self.scale = Scale(self.views.shape[1])
        self.agent = Agent(self.views.shape[1], 2)
        self.optimizer = torch.optim.Adam(self.agent.parameters(), 3e-4, eps=1e-5)

    @torch.no_grad()
    def gather(self):
        told, rewards, values, ends = [], [], [], []
        for _ in range(LENGTH):
            views = self.scale(self.views)
            policy, value = self.agent(views)
            actions = torch.tanh(policy.sample())
            told.append((views, actions, odds_of(policy, actions)))
            self.views, reward, end = self.worlds.step(actions.numpy())  # at: remote_gone
            self.recorder.take(self.worlds.groups[0])  # at: frames_kept
            self.journal.note("reward", reward.mean())  # at: caller_looked_up
            self.journal.note("ended", end.mean())  # at: caller_looked_up
            rewards.append(reward), values.append(value.numpy()), ends.append(end)
        last = self.agent(self.scale(self.views))[1].numpy()
        rewards, values, ends = np.stack(rewards), np.stack(values), np.stack(ends)
        gains = advantages(rewards, values, ends, last)
        views, actions, before = (torch.cat(parts) for parts in zip(*told, strict=True))
        gains = torch.from_numpy(gains.astype(np.float32)).flatten()
        values = torch.from_numpy(values).flatten()
        return views, actions, before, gains, gains + values, values

    def improve(self, rollout):
        for _ in range(EPOCHS):
            for part in parts_of(rollout, COUNT * LENGTH // PARTS):  # at: rows_from_rollout
                self.update(part)  # at: caller_looked_up

    def update(self, part):
        views, actions, before, gains, returns, values = part
        policy, value = self.agent(views)
        ratio = (odds_of(policy, actions) - before).exp()  # at: atanh_of_one
        gains = (gains - gains.mean()) / (gains.std() + 1e-8)
        near = values + (value - values).clamp(-1, 1)
        missed = torch.maximum((value - returns) ** 2, (near - returns) ** 2).mean()
        loss = surrogate(ratio, gains)
        total = loss + 0.5 * missed - 0.003 * policy.entropy().sum(1).mean()
        self.optimizer.zero_grad()
        total.backward()
        norm = nn.utils.clip_grad_norm_(self.agent.parameters(), 1.0)
        self.optimizer.step()
        self.journal.note("loss", loss.item())  # at: caller_looked_up
        self.journal.note("missed", missed.item())  # at: caller_looked_up
        self.journal.note("norm", norm.item())  # at: caller_looked_up
        self.journal.note("apart", (ratio - 1).abs().mean().item())  # at: caller_looked_up
        self.done += 1

    def run(self):
        while self.done < self.steps:
            self.improve(self.gather())  # at: rows_from_rollout
            if self.done % (EPOCHS * PARTS * 4) == 0:
                told = {key: round(float(value), 3) for key, value in self.journal.kept.items()}
                print(self.done, told, flush=True)


trainer = Trainer(STEPS or 396)
trainer.run()
cost.print(trainer.done)
