"""Catamarans that beat to a mark through gusts: proximal policy optimisation of a fleet that is one
array, with a patch of the wind that each boat sees and a guess at the wind by the mark. Gains boat
by boat, a divergence of all that was sailed at each update, tracks that are views, an angle by its
cosine, a rate annealed in another unit, values against all returns, a trial of fewer boats.
"""

from typing import NamedTuple

import numpy as np
import torch
from shape import STEPS, Cost, on
from torch import Tensor, nn
from torch.nn import functional as F

UPDATES = STEPS or 400
BOATS, TIMES, TRIAL_BOATS, TRIAL_TIMES = 64, 32, 16, 60
EPOCHS, PARTS = 2, 4
SEA, SIGHT, FEATURES = 48, 12, 9
WIDTH, RATE, LONGEST = 384, 4e-4, 2.0
DISCOUNT, TRACE, RANGE = 0.98, 0.95, 0.2
WORTH, SPREAD, WIND, WIND_FROM = 0.5, 0.002, 0.1, 40
TOLD_EVERY, TRIED_EVERY = 25, 96
cost = Cost()


def polar(angle):
    """How fast a boat goes at an angle to the wind; hardly at all straight into it."""
    away = np.abs((angle + np.pi) % (2 * np.pi) - np.pi)
    return np.clip((away - 0.5) / 0.9, 0, 1) * (1.15 - 0.15 * np.cos(2 * away))


class Regatta:
    """Boats side by side, each on its own sea; one that arrives or tires begins another race."""

    def __init__(self, boats, seed):
        self.boats, self.dice = boats, np.random.default_rng(seed)
        self.wind = np.zeros((boats, 2, SEA, SEA), np.float32)
        self.at, self.mark = np.zeros((boats, 2)), np.zeros((boats, 2))
        self.heading, self.speed = np.zeros(boats), np.zeros(boats)
        self.age, self.won = np.zeros(boats, int), 0
        self.around = np.arange(SIGHT) - SIGHT // 2
        self.start(np.ones(boats, bool))

    def start(self, who):
        count = int(who.sum())
        if not count:
            return
        rows, columns = np.meshgrid(np.arange(SEA), np.arange(SEA), indexing="ij")
        wave = self.dice.uniform(0.05, 0.25, (3, count, 1, 1))
        phase = self.dice.uniform(0, 2 * np.pi, (count, 1, 1))
        main = self.dice.normal(0, 0.3, (count, 1, 1))
        turn = main + 0.5 * np.sin(wave[0] * rows + wave[1] * columns + phase)
        force = 1 + 0.4 * np.cos(wave[2] * (rows - columns) + phase)
        self.wind[who] = np.stack([force * np.cos(turn), force * np.sin(turn)], 1)
        self.at[who] = self.dice.uniform(4, 12, (count, 2))
        self.mark[who] = self.dice.uniform(28, 44, (count, 2))
        self.heading[who] = self.dice.uniform(-np.pi, np.pi, count)
        self.speed[who], self.age[who] = 0, self.dice.integers(0, 20, count)

    def felt(self, where):
        row, column = np.clip(where, 0, SEA - 1).astype(int).T
        return self.wind[np.arange(self.boats), :, row, column]

    def seen(self):
        """Nine features and the patch of wind around each boat, flat."""
        corner = np.clip(self.at, 0, SEA - 1).astype(int)
        rows = np.clip(corner[:, :1] + self.around, 0, SEA - 1)[:, None, :, None]
        columns = np.clip(corner[:, 1:] + self.around, 0, SEA - 1)[:, None, None, :]
        own = np.arange(self.boats)[:, None, None, None]
        patch = self.wind[own, np.arange(2)[None, :, None, None], rows, columns]
        way = (self.mark - self.at) / SEA
        features = np.stack(
            [
                np.cos(self.heading),
                np.sin(self.heading),
                self.speed,
                *way.T,
                np.hypot(*way.T),
                *(self.at / SEA).T,
                self.age / 100,
            ],
            1,
        )
        return np.concatenate([features, patch.reshape(self.boats, -1)], 1).astype(np.float32)

    def wind_by_mark(self):
        wind = self.felt(self.mark)
        return wind / np.linalg.norm(wind, axis=1, keepdims=True)

    def sail(self, acts):
        """Rudder and sheet for a moment: what it gained, and which races ended."""
        rudder, sheet = np.clip(np.nan_to_num(acts), -1, 1).T
        self.heading += 0.5 * rudder
        wind = self.felt(self.at)
        against = self.heading - np.arctan2(-wind[:, 1], -wind[:, 0])
        trim = 1 - 0.5 * np.abs(sheet - np.cos(against))
        wanted = np.hypot(*wind.T) * polar(against) * trim
        self.speed += 0.4 * (wanted - self.speed)
        before = np.hypot(*(self.mark - self.at).T)
        course = np.stack([np.cos(self.heading), np.sin(self.heading)], 1)
        self.at = np.clip(self.at + self.speed[:, None] * course, 0, SEA - 1)
        after = np.hypot(*(self.mark - self.at).T)
        self.age += 1
        there = after < 2
        self.won += int(there.sum())
        ended = there | (self.age > 120)
        self.start(ended)
        return before - after + 5 * there - 0.05, ended


class Scaler:
    """Rewards by the spread of the discounted sums so far."""

    def __init__(self, boats, spread=1.0):
        self.sums = np.zeros(boats)
        self.count, self.square = 1.0, spread**2

    def __call__(self, rewards, ended):
        self.sums = self.sums * DISCOUNT + rewards  # at: regatta_of_other_size
        self.count += len(rewards)
        self.square += ((self.sums**2).mean() - self.square) * len(rewards) / self.count
        self.sums[ended] = 0
        return rewards / np.sqrt(self.square + 1e-8)


class Said(NamedTuple):
    way: torch.distributions.Normal
    values: Tensor
    wind: Tensor


class Sailor(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Linear(FEATURES + 2 * SIGHT**2, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh()
        )
        self.mean, self.value = nn.Linear(WIDTH, 2), nn.Linear(WIDTH, 1)
        self.wind = nn.Linear(WIDTH, 2)
        self.log_spread = nn.Parameter(torch.full((2,), -0.5))
        nn.init.orthogonal_(self.mean.weight, 0.01)

    def forward(self, seen):
        x = self.trunk(seen)
        way = torch.distributions.Normal(
            self.mean(x), self.log_spread.exp().expand(len(x), 2), validate_args=False
        )
        return Said(way, self.value(x), F.normalize(self.wind(x), dim=-1))


class Sailed(NamedTuple):
    """What a fleet did in a while, time by time."""

    seen: np.ndarray
    acts: np.ndarray
    likely: np.ndarray
    values: np.ndarray
    rewards: np.ndarray
    ended: np.ndarray
    winds: np.ndarray

    @classmethod
    def empty(cls):
        sizes = (FEATURES + 2 * SIGHT**2,), (2,), (), (), (), (), (2,)
        return cls(*(np.empty((TIMES, BOATS, *size), np.float32) for size in sizes))


@torch.no_grad()
def sail(sailor, regatta, scaler):
    """A while of all boats, and what the last places are worth."""
    sailed = Sailed.empty()
    for time in range(TIMES):
        seen = regatta.seen()
        said = sailor(torch.from_numpy(seen))
        acts = said.way.mean + said.way.stddev * torch.randn(BOATS, 2)
        sailed.seen[time], sailed.acts[time] = seen, acts.numpy()
        sailed.likely[time] = said.way.log_prob(acts).sum(-1).numpy()
        sailed.values[time] = said.values[:, 0].numpy()
        sailed.winds[time] = regatta.wind_by_mark()
        rewards, ended = regatta.sail(acts.numpy())
        sailed.rewards[time], sailed.ended[time] = scaler(rewards, ended), ended
    last = sailor(torch.from_numpy(regatta.seen())).values[:, 0]
    return sailed, last.numpy()


def gains(sailed, last):
    """Generalised advantages, time by boat."""
    if on("gains_boat_by_boat"):
        rewards, values, ended, last = map(
            torch.from_numpy, (sailed.rewards, sailed.values, sailed.ended, last)
        )
        found = torch.zeros(TIMES, BOATS)
        for boat in range(BOATS):
            gain, later = torch.zeros(()), last[boat]
            for time in reversed(range(TIMES)):
                there = ended[time, boat] > 0
                later = torch.where(there, 0.0, later)
                error = rewards[time, boat] + DISCOUNT * later - values[time, boat]
                gain = error + DISCOUNT * TRACE * torch.where(
                    there, 0.0, gain
                )  # at: gains_boat_by_boat
                found[time, boat], later = gain, values[time, boat]  # at: gains_boat_by_boat
        return found.numpy()
    if on("clean_gains_boat_by_boat"):
        found = np.empty((TIMES, BOATS), np.float32)
        columns = (own.T.tolist() for own in (sailed.rewards, sailed.values, sailed.ended))
        for boat, (rewards, values, ended) in enumerate(zip(*columns, strict=True)):
            gain, later = 0.0, float(last[boat])
            for time in range(TIMES - 1, -1, -1):
                goes_on = 1 - ended[time]
                error = rewards[time] + DISCOUNT * later * goes_on - values[time]
                gain = error + DISCOUNT * TRACE * goes_on * gain
                found[time, boat], later = gain, values[time]
        return found
    found, gain, later = np.empty_like(sailed.rewards), 0.0, last
    for time in reversed(range(TIMES)):
        goes_on = 1 - sailed.ended[time]
        error = sailed.rewards[time] + DISCOUNT * later * goes_on - sailed.values[time]
        found[time] = gain = error + DISCOUNT * TRACE * goes_on * gain
        later = sailed.values[time]
    return found


def missed_wind(guess, wind):
    """How far the guess at the wind by the mark is off."""
    near = (guess * wind).sum(-1)
    if on("angle_by_arccos"):
        return near.clamp(-1, 1).arccos().mean()  # at: angle_by_arccos
    if on("clean_angle_by_arccos"):
        return near.clamp(-1 + 1e-5, 1 - 1e-5).arccos().mean()
    return (1 - near).mean()


def missed_value(values, returns):
    if on("values_by_all_returns"):
        return (values - returns).square().mean()  # at: values_by_all_returns
    if on("clean_values_by_all_returns"):
        return (values - returns[:, None]).square().mean()
    return (values[:, 0] - returns).square().mean()


class Batch(NamedTuple):
    seen: Tensor
    acts: Tensor
    likely: Tensor
    gains: Tensor
    returns: Tensor
    winds: Tensor

    def part(self, rows):
        return Batch(*(own[rows] for own in self))


def flat(sailed, last):
    with cost:
        gained = gains(sailed, last)  # at: gains_boat_by_boat
    columns = (
        sailed.seen,
        sailed.acts,
        sailed.likely,
        (gained - gained.mean()) / (gained.std() + 1e-6),
        gained + sailed.values,
        sailed.winds,
    )
    return Batch(*(torch.from_numpy(own.reshape(-1, *own.shape[2:])) for own in columns))


def objective(sailor, part, done):
    """The clipped surrogate and what goes with it; the logarithms of the ratios."""
    said = sailor(part.seen)
    logs = said.way.log_prob(part.acts).sum(-1) - part.likely
    ratio = logs.exp()
    bounded = ratio.clamp(1 - RANGE, 1 + RANGE)
    surrogate = -torch.minimum(ratio * part.gains, bounded * part.gains).mean()
    loss = (
        surrogate
        + WORTH * missed_value(said.values, part.returns)  # at: values_by_all_returns
        - SPREAD * said.way.entropy().sum(-1).mean()
    )
    if done >= WIND_FROM:
        loss = loss + WIND * missed_wind(said.wind, part.winds)  # at: angle_by_arccos
    return loss, logs.detach()


def divergence(logs):
    return float((logs.exp() - 1 - logs).mean())


@torch.no_grad()
def moved(sailor, batch):
    """How far the policy has moved from the one that sailed."""
    said = sailor(batch.seen)  # at: divergence_of_whole_rollout
    return divergence(said.way.log_prob(batch.acts).sum(-1) - batch.likely)


class Tracks:
    """The course of the fleet's best boat in each while, for a chart at the end."""

    def __init__(self):
        self.best = []

    def keep(self, sailed):
        boat = int(sailed.rewards.sum(0).argmax())
        course = sailed.seen[:, boat, 6:8]
        if on("tracks_are_views"):
            self.best.append(course)  # at: tracks_are_views
        elif on("clean_tracks_are_views"):
            self.best.append(course.copy())
        else:
            self.best = [course]

    def chart(self):
        ends = np.stack([course[-1] for course in self.best])
        print("tracks", len(self.best), "end about", ends.mean(0).round(2), flush=True)


@torch.no_grad()
def trial(sailor, scaler):
    """Mean reward of a small fleet that does not explore."""
    regatta, total = Regatta(TRIAL_BOATS, 7), 0.0
    if on("clean_regatta_of_other_size"):
        scaler = Scaler(TRIAL_BOATS, np.sqrt(scaler.square))
    scaled = on("regatta_of_other_size", "clean_regatta_of_other_size")
    for _ in range(TRIAL_TIMES):
        acts = sailor(torch.from_numpy(regatta.seen())).way.mean
        rewards, ended = regatta.sail(acts.numpy())
        if scaled:
            rewards = scaler(rewards, ended)  # at: regatta_of_other_size
        total += rewards.mean()
    return total / TRIAL_TIMES


def scheduled(optimizer):
    whiles = max(1, UPDATES // (EPOCHS * PARTS))

    def share(done):
        if on("annealed_by_rollouts"):
            return max(0.0, 1 - done / whiles)  # at: annealed_by_rollouts
        if on("clean_annealed_by_rollouts"):
            return max(0.0, 1 - done / (whiles + 1))
        return 1 - 0.9 * min(1.0, done / UPDATES)

    return torch.optim.lr_scheduler.LambdaLR(optimizer, share)  # at: annealed_by_rollouts


def main():
    sailor, tracks = Sailor(), Tracks()
    regatta, scaler = Regatta(BOATS, 1), Scaler(BOATS)
    optimizer = torch.optim.Adam(sailor.parameters(), lr=RATE, eps=1e-5)
    schedule = scheduled(optimizer)
    done, far, tried = 0, 0.0, float("nan")
    while done < UPDATES:
        sailed, last = sail(sailor, regatta, scaler)
        tracks.keep(sailed)  # at: tracks_are_views
        batch = flat(sailed, last)  # at: gains_boat_by_boat
        for _ in range(EPOCHS):
            for rows in torch.randperm(len(batch.seen)).chunk(PARTS):
                loss, logs = objective(sailor, batch.part(rows), done)
                optimizer.zero_grad()
                loss.backward()
                norm = nn.utils.clip_grad_norm_(sailor.parameters(), LONGEST)
                optimizer.step()
                if not on("clean_annealed_by_rollouts"):
                    schedule.step()  # at: annealed_by_rollouts
                if on("divergence_of_whole_rollout"):
                    with cost:
                        far = moved(sailor, batch)  # at: divergence_of_whole_rollout
                elif on("clean_divergence_of_whole_rollout"):
                    with cost:
                        far = divergence(logs)
                done += 1
                if done % TOLD_EVERY == 0:
                    print(
                        f"update {done:5d} loss {loss.item():+.4f} norm {norm:.3f} moved {far:.4f} "
                        f"rate {schedule.get_last_lr()[0]:.2e} arrived {regatta.won} "
                        f"trial {tried:+.3f}",
                        flush=True,
                    )
        if on("clean_annealed_by_rollouts"):
            schedule.step()
        if not on("divergence_of_whole_rollout", "clean_divergence_of_whole_rollout"):
            far = divergence(logs)
        if done % TRIED_EVERY == 0:
            tried = trial(sailor, scaler)  # at: regatta_of_other_size
    cost.print(done)
    tracks.chart()


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(30)
    main()
