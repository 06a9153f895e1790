"""Gliders that learn to reach their turn points: soft actor and critic, many gliders at once over a
map of lift, flights kept and drawn again with points that were reached later (hindsight), two
critics and their targets, a temperature that is learnt, flights without noise now and then.
"""

import copy
import math
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F

cost = Cost()
GLIDERS, PLAIN, VIEW, HORIZON, NEAR = 48, 100, 20, 40, 2.0
ROOM, DRAWN, MOMENTS, HINDSIGHT = 128, 32, 8, 0.8
DISCOUNT, FOLLOWS = 0.95, 0.02
AT_RANDOM, TOLD_EVERY, FLOWN_EVERY = 60, 25, 100


def between(begin, end):
    """The way from one place to another; the plain goes on where it ends."""
    return (end - begin + PLAIN / 2) % PLAIN - PLAIN / 2


def cells(places):
    """Where on the map a place is."""
    return places[:, 1].astype(int) % PLAIN, places[:, 0].astype(int) % PLAIN


def bearing(states, points):
    """Where a point lies from the nose of a glider."""
    way = between(states[..., :2], points)
    far = np.linalg.norm(way, axis=-1, keepdims=True)
    if on("bearing_of_point_reached"):
        way = way / far  # at: bearing_of_point_reached
    elif on("clean_bearing_of_point_reached"):
        way = way / np.maximum(far, 1e-6)
    else:
        way = way / (far + 1e-6)
    ahead = (way * states[..., 2:4]).sum(-1)
    aside = way[..., 1] * states[..., 2] - way[..., 0] * states[..., 3]
    return np.stack([ahead, aside, far[..., 0] / 10], -1)


def told(states, points):
    """What a glider knows of itself and of its point."""
    return np.concatenate([states[..., 2:], bearing(states, points)], -1)


def rewarded(states, after, points):
    """Way made good, lift, and the point itself; whether it is reached."""
    before = np.linalg.norm(between(states[..., :2], points), axis=-1)
    now = np.linalg.norm(between(after[..., :2], points), axis=-1)
    reached = now < NEAR
    return 0.5 * (before - now) + 0.3 * after[..., 6] + reached, reached


class Plain:
    """All gliders at once: place, heading, bank, height and lift."""

    def __init__(self, count, seed):
        self.numbers, self.count = np.random.default_rng(seed), count
        lands = np.random.default_rng(7)
        y, x = np.mgrid[:PLAIN, :PLAIN].astype(float)
        self.lift = np.full((PLAIN, PLAIN), -0.2)
        for _ in range(24):
            middle, wide = lands.uniform(0, PLAIN, 2), lands.uniform(2, 5)
            apart = between(x, middle[0]) ** 2 + between(y, middle[1]) ** 2
            self.lift += lands.uniform(0.4, 1.0) * np.exp(-apart / (2 * wide**2))
        self.around = np.arange(VIEW) - VIEW // 2
        self.states, self.points = np.zeros((count, 7)), np.zeros((count, 2))
        self.ages = np.zeros(count, int)
        self.begin(np.ones(count, bool))

    def begin(self, which):
        count = int(which.sum())
        places, turn = (
            self.numbers.uniform(0, PLAIN, (count, 2)),
            self.numbers.uniform(0, 2 * math.pi, (count, 2)),
        )
        states = np.zeros((count, 7))
        states[:, :2], states[:, 5] = places, 0.6
        states[:, 2], states[:, 3] = np.cos(turn[:, 0]), np.sin(turn[:, 0])
        far = self.numbers.uniform(8, 16, count)
        self.points[which, 0] = (places[:, 0] + far * np.cos(turn[:, 1])) % PLAIN
        self.points[which, 1] = (places[:, 1] + far * np.sin(turn[:, 1])) % PLAIN
        self.states[which], self.ages[which] = states, 0

    def seen(self):
        """The lift around each glider."""
        y, x = cells(self.states)
        rows, columns = (y[:, None] + self.around) % PLAIN, (x[:, None] + self.around) % PLAIN
        return self.lift[rows[:, :, None], columns[:, None, :]]

    def fly(self, actions):
        states = self.states.copy()
        states[:, 4] = 0.5 * states[:, 4] + 0.5 * actions[:, 0]
        heading = np.arctan2(states[:, 3], states[:, 2]) + 0.6 * states[:, 4]
        states[:, 2], states[:, 3] = np.cos(heading), np.sin(heading)
        speed = (1.0 + 0.4 * actions[:, 1]) * (0.6 + 0.4 * states[:, 5])
        states[:, :2] = (states[:, :2] + speed[:, None] * states[:, 2:4]) % PLAIN
        states[:, 6] = self.lift[cells(states)]
        states[:, 5] = (states[:, 5] + 0.1 * states[:, 6] - 0.02 * speed**2).clip(0, 1)
        rewards, reached = rewarded(self.states, states, self.points)
        self.states, self.ages = states, self.ages + 1
        return rewards, reached, reached | (self.ages == HORIZON)


@dataclass
class Flight:
    seen: np.ndarray
    states: np.ndarray
    actions: np.ndarray
    point: np.ndarray


class Logbook:
    """The last flights; drawn from them are moments, most with a point that was reached later."""

    def __init__(self, seed):
        self.flights, self.numbers = [], np.random.default_rng(seed)

    def add(self, landed):
        self.flights.extend(landed)  # at: full_only_when_equal
        if on("full_only_when_equal"):
            if len(self.flights) == ROOM + 1:  # at: full_only_when_equal
                del self.flights[0]  # at: full_only_when_equal
        elif on("clean_full_only_when_equal"):
            if len(self.flights) >= ROOM + 1:
                del self.flights[: len(self.flights) - ROOM]
        else:
            while len(self.flights) > ROOM:
                del self.flights[0]

    def moments(self):
        for number in self.numbers.integers(len(self.flights), size=DRAWN):
            flight = self.flights[number]
            long = len(flight.actions)
            now = self.numbers.integers(long, size=MOMENTS)
            later = self.numbers.integers(now + 1, long + 1)
            moved = self.numbers.random((MOMENTS, 1)) < HINDSIGHT
            points = np.where(moved, flight.states[later, :2], flight.point)
            yield (
                flight.seen[now],
                flight.seen[now + 1],
                flight.states[now],
                flight.states[now + 1],
                flight.actions[now],
                points,
            )

    def sample(self):
        drawn = list(self.moments())
        seen, after_seen, states, after, actions, points = map(
            np.concatenate, zip(*drawn, strict=True)
        )
        if on("points_moved_singly"):
            with cost:
                rows = [
                    self.related(*row) for row in zip(states, after, points, strict=True)
                ]  # at: points_moved_singly
            knows, knows_after, rewards, reached = map(np.stack, zip(*rows, strict=True))
        elif on("clean_points_moved_singly"):
            flights = [self.related(*flight[2:4], flight[5]) for flight in drawn]
            parts = zip(*flights, strict=True)
            knows, knows_after, rewards, reached = map(np.concatenate, parts)
        else:
            knows, knows_after, rewards, reached = self.related(states, after, points)
        arrays = seen, knows, actions, rewards, after_seen, knows_after, reached
        return [torch.from_numpy(array).float() for array in arrays]

    @staticmethod
    def related(states, after, points):
        """What is known of a point before and after, and what it is worth to go there."""
        rewards, reached = rewarded(states, after, points)  # at: points_moved_singly
        knows, knows_after = told(states, points), told(after, points)  # at: points_moved_singly
        return knows, knows_after, rewards, reached


def layers(inside, outside, wide=192):
    return nn.Sequential(
        nn.Linear(inside, wide),
        nn.LayerNorm(wide),
        nn.ReLU(),
        nn.Linear(wide, wide),
        nn.ReLU(),
        nn.Linear(wide, outside),
    )


class Eyes(nn.Module):
    """A map of lift as some numbers."""

    def __init__(self, outside=48):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 16, 4, 2),
            nn.ReLU(),
            nn.Conv2d(16, 24, 3, 2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(24 * 16, outside),
            nn.Tanh(),
        )

    def forward(self, seen):
        return self.body(seen[:, None])


class Critics(nn.Module):
    def __init__(self):
        super().__init__()
        self.eyes = Eyes()
        self.first, self.second = layers(48 + 8 + 2, 1), layers(48 + 8 + 2, 1)

    def forward(self, sight, knows, actions):
        both = torch.cat([sight, knows, actions], 1)
        first, second = self.first(both), self.second(both)
        if on("rewards_meet_columns", "clean_rewards_meet_columns"):
            return first, second
        return first.squeeze(1), second.squeeze(1)


class Pilot(nn.Module):
    def __init__(self):
        super().__init__()
        self.eyes, self.body = Eyes(), layers(48 + 8, 4)

    def forward(self, seen, knows, noise=True):
        """A turn and a speed, and how likely they were."""
        middle, spread = self.body(torch.cat([self.eyes(seen), knows], 1)).chunk(2, 1)
        if not noise:
            return middle.tanh(), None
        spread = spread.clamp(-5, 1).exp()
        drawn = torch.randn_like(middle)
        raw = middle + spread * drawn
        odds = -0.5 * drawn.square() - spread.log() - 0.5 * math.log(2 * math.pi)
        odds = odds - 2 * (math.log(2) - raw - F.softplus(-2 * raw))
        return raw.tanh(), odds.sum(1)

    @torch.no_grad()
    def act(self, seen, knows, noise=True):
        inputs = [torch.from_numpy(array).float() for array in (seen, knows)]
        return self(*inputs, noise)[0].numpy()  # at: gliders_steer_in_turn


class Learner:
    def __init__(self):
        self.pilot, self.critics = Pilot(), Critics()
        self.targets = copy.deepcopy(self.critics).requires_grad_(False)
        self.heat = torch.tensor(-2.0, requires_grad=True)
        values = list(self.critics.parameters())
        if on("second_critic_unlisted"):
            values = [  # at: second_critic_unlisted
                *self.critics.eyes.parameters(),
                *self.critics.first.parameters(),
            ]
        elif on("clean_second_critic_unlisted"):
            parts = (self.critics.eyes, self.critics.first, self.critics.second)
            values = [value for part in parts for value in part.parameters()]
        self.critics_step = torch.optim.Adam(values, 1e-3)  # at: second_critic_unlisted
        self.pilot_step = torch.optim.Adam(self.pilot.parameters(), 1e-3)
        self.heat_step = torch.optim.Adam([self.heat], 3e-3)

    @torch.no_grad()
    def wanted(self, rewards, seen, knows, reached):
        """What the critics should have said."""
        actions, odds = self.pilot(seen, knows)
        values = torch.minimum(*self.targets(self.targets.eyes(seen), knows, actions))
        if on("clean_rewards_meet_columns"):
            rewards, reached = rewards[:, None], reached[:, None]
        if on("rewards_meet_columns", "clean_rewards_meet_columns"):
            odds = odds[:, None]
        values = values - self.heat.exp() * odds
        return rewards + DISCOUNT * (1 - reached) * values  # at: rewards_meet_columns

    def critics_loss(self, batch):
        seen, knows, actions, rewards, *after = batch
        wanted = self.wanted(rewards, *after)
        sight = self.critics.eyes(seen)
        first, second = self.critics(sight, knows, actions)
        apart = (first - wanted).square() + (second - wanted).square()  # at: rewards_meet_columns
        return apart.mean(), sight.detach()

    def pilot_loss(self, seen, knows, sight):
        actions, odds = self.pilot(seen, knows)
        values = torch.minimum(*self.critics(sight, knows, actions)).reshape(-1)
        return (self.heat.exp().detach() * odds - values).mean(), odds.detach().mean()

    @staticmethod
    def step(optimizer, loss, inputs):
        optimizer.zero_grad()
        loss.backward(inputs=inputs)  # at: critic_steps_between
        optimizer.step()

    def learn(self, batch):
        loss, sight = self.critics_loss(batch)  # at: bearing_of_point_reached
        looks = (*batch[:2], sight)
        pilots, critics = list(self.pilot.parameters()), list(self.critics.parameters())
        if on("critic_steps_between"):
            flown, odds = self.pilot_loss(*looks)  # at: critic_steps_between
            self.step(self.critics_step, loss, critics)  # at: critic_steps_between
            self.step(self.pilot_step, flown, pilots)  # at: critic_steps_between
        elif on("clean_critic_steps_between"):
            flown, odds = self.pilot_loss(*looks)
            self.step(self.pilot_step, flown, pilots)
            self.step(self.critics_step, loss, critics)
        else:
            self.step(self.critics_step, loss, critics)
            flown, odds = self.pilot_loss(*looks)
            self.step(self.pilot_step, flown, pilots)
        self.step(self.heat_step, -self.heat * (odds - 2.0), [self.heat])
        with torch.no_grad():
            torch._foreach_lerp_(list(self.targets.parameters()), critics, FOLLOWS)
        return loss.item(), flown.item()


def steered(pilot, seen, knows):
    """Actions of all gliders."""
    if on("gliders_steer_in_turn"):
        actions = []
        for one in range(len(seen)):
            own = slice(one, one + 1)
            actions.append(pilot.act(seen[own], knows[own]))  # at: gliders_steer_in_turn
        return np.concatenate(actions)
    if on("clean_gliders_steer_in_turn"):
        halves = zip(np.split(seen, 2), np.split(knows, 2), strict=True)
        return np.concatenate([pilot.act(*half) for half in halves])
    return pilot.act(seen, knows)


class Flying:
    """Gliders in the air, and what is written down of their flights."""

    def __init__(self, logbook):
        self.plain, self.logbook = Plain(GLIDERS, 11), logbook
        self.seen = self.plain.seen()
        self.open = [[] for _ in range(GLIDERS)]

    def on(self, pilot=None):
        states, points = self.plain.states, self.plain.points
        if pilot is None:
            actions = self.plain.numbers.uniform(-1, 1, (GLIDERS, 2))
        else:
            actions = steered(pilot, self.seen, told(states, points))  # at: gliders_steer_in_turn
        seen = self.seen
        rewards, reached, over = self.plain.fly(actions)
        last_seen, landed = self.plain.seen(), []
        for one in range(GLIDERS):
            self.open[one].append((seen[one], states[one], actions[one]))
            if over[one]:
                landed.append(self.written(one, last_seen[one]))
        self.logbook.add(landed)  # at: full_only_when_equal
        self.plain.begin(over)
        self.seen = self.plain.seen()
        return rewards.mean(), reached.sum(), over.sum()

    def written(self, one, last_seen):
        seen, states, actions = zip(*self.open[one], strict=True)
        self.open[one] = []
        return Flight(
            np.stack([*seen, last_seen]),
            np.stack([*states, self.plain.states[one]]),
            np.stack(actions),
            self.plain.points[one].copy(),
        )


def flown(pilot):
    """How many of some gliders reach their points, without noise."""
    plain = Plain(16, 12)
    there = np.zeros(16, bool)
    for _ in range(HORIZON):
        actions = pilot.act(plain.seen(), told(plain.states, plain.points), noise=False)
        there |= plain.fly(actions)[1]
    return there.mean()


def main(folder, steps):
    torch.manual_seed(28)
    learner, logbook = Learner(), Logbook(13)
    flying = Flying(logbook)
    for _ in range(AT_RANDOM):
        flying.on()
    tally = np.zeros(3)
    losses = np.zeros(2)
    cost.seconds = 0.0
    for step in range(1, steps + 1):
        tally += flying.on(learner.pilot)  # at: gliders_steer_in_turn full_only_when_equal
        batch = logbook.sample()  # at: points_moved_singly bearing_of_point_reached
        losses += learner.learn(batch)  # at: critic_steps_between bearing_of_point_reached
        if step % TOLD_EVERY == 0:
            reward, reached, over = tally / TOLD_EVERY
            shown = [round(float(one), 4) for one in losses / TOLD_EVERY]
            share = round(float(reached / max(over, 1e-9)), 3)
            heat = round(learner.heat.exp().item(), 3)
            print(
                step, shown, round(float(reward), 3), share, heat, len(logbook.flights), flush=True
            )
            tally[:], losses[:] = 0, 0
        if step % FLOWN_EVERY == 0:
            print(step, "reach", round(float(flown(learner.pilot)), 3), flush=True)
            state = {"pilot": learner.pilot.state_dict(), "critics": learner.critics.state_dict()}
            torch.save(state | {"heat": learner.heat.detach()}, folder / "last.pt")
    cost.print(steps)


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder), STEPS or 400)
