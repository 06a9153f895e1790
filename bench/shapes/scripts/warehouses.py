"""Forklifts that learn to find their goals in a warehouse, off policy: a soft actor, two critics,
their targets, an entropy coefficient, a replay with priorities in blocks, a bonus for what is new,
many forklifts at a time in a world of arrays: rows drawn by shuffling all, critics in a plain
list, weights by the least priority, visits counted by whole views, resets that seed everything,
limits looked up one by one, sums that miss repeats.
"""

import collections
import copy
import math
import random

import eager  # noqa: F401
import numpy as np
import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F

cost = Cost()
FLEET, RAYS, RACKS, LASTS, CELLS = 96, 32, 8, 50, 16
PLAIN, ACTIONS, WIDTH, ROWS = 8, 2, 208, 256
VIEW = PLAIN + RAYS
FAR, LOAD, KIND = 4, 5, 7
LIMITS = (0.5, 0.75, 1.0)
BLOCKS, EACH = 2400, 128
CAPACITY = BLOCKS * EACH
DISCOUNT, FOLLOWS, SHARP, BETA, TOLD_EVERY = 0.97, 0.01, 0.6, 0.4, 50


def everything_seeded(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)  # at: reset_seeds_everything


class Warehouse:
    """Forklifts among round racks; each is to drive to a goal of its own, faster where it may."""

    def __init__(self, fleet, seed):
        self.numbers, self.fleet, self.episodes = np.random.default_rng(seed), fleet, 0
        self.racks = np.random.default_rng(245).uniform(0.15, 0.85, (RACKS, 2))
        self.angles = np.linspace(-math.pi, math.pi, RAYS, endpoint=False)
        self.place, self.goal = np.zeros((2, fleet, 2))
        self.speed, self.load = np.zeros((fleet, 2)), np.zeros(fleet)
        self.reset(np.arange(fleet))
        self.age = self.numbers.integers(0, LASTS, fleet)

    def spots(self, count):
        if on("reset_seeds_everything"):
            everything_seeded(245)  # at: reset_seeds_everything
        if on("clean_reset_seeds_everything"):
            own = torch.Generator().manual_seed(245 + self.episodes)
            return torch.rand(2, count, 2, generator=own).double().numpy()
        return self.numbers.random((2, count, 2))

    def reset(self, which):
        self.episodes += 1
        self.place[which], self.goal[which] = self.spots(len(which))  # at: reset_seeds_everything
        self.speed[which], self.load[which] = 0, self.numbers.integers(0, 2, len(which))
        if self.episodes > 1:
            self.age[which] = 0

    def kinds(self):
        """Which kind of aisle each one is in."""
        return (self.place[:, 0] * 5.99).astype(int) % len(LIMITS)

    def views(self):
        """What each one knows of itself, and how near racks are in all directions."""
        way = self.racks - self.place[:, None]
        far = np.hypot(way[..., 0], way[..., 1])
        bearing = np.arctan2(way[..., 1], way[..., 0])
        turn = np.abs(bearing[..., None] - self.angles)
        turn = np.minimum(turn, 2 * math.pi - turn)
        rays = np.maximum(1 - turn / 0.5, 0) / (1 + 8 * far[..., None])
        goal = (self.goal - self.place).T
        plain = [self.place - 0.5, self.speed, np.hypot(*goal), self.load]
        plain += [np.arctan2(goal[1], goal[0]) / math.pi, self.kinds()]
        return np.column_stack([*plain, rays.max(1)]).astype(np.float32)

    def step(self, actions):
        before = np.hypot(*(self.goal - self.place).T)
        self.speed = 0.6 * self.speed + 0.06 * actions
        self.place = (self.place + self.speed).clip(0, 1)
        after = np.hypot(*(self.goal - self.place).T)
        near = np.hypot(*(self.racks - self.place[:, None]).transpose(2, 0, 1)).min(1)
        there, self.age = after < 0.08, self.age + 1
        rewards = 10 * (before - after) - 0.5 * (near < 0.05) + 2.0 * there
        cut = (self.age >= LASTS) & ~there
        found = self.views(), rewards.astype(np.float32), there, cut
        over = np.flatnonzero(there | cut)
        if len(over):
            self.reset(over)  # at: reset_seeds_everything
        return found


class Replay:
    """The latest steps, drawn by how wrong the critics were about them: priorities lie in blocks,
    whose sums are looked through first.
    """

    def __init__(self, seed):
        self.numbers, self.place, self.largest = np.random.default_rng(seed), 0, 1.0
        self.old_numbers = np.random.RandomState(seed)
        self.views, self.nexts = np.zeros((2, CAPACITY, VIEW), np.float32)
        self.actions = np.zeros((CAPACITY, ACTIONS), np.float32)
        self.figures = np.zeros((CAPACITY, 3), np.float32)
        self.shares, self.sums = np.zeros((BLOCKS, EACH)), np.zeros(BLOCKS)

    def put(self, rows, values):
        flat = self.shares.reshape(-1)
        if on("sums_miss_repeats"):
            self.sums[rows // EACH] += values - flat[rows]  # at: sums_miss_repeats
        elif on("clean_sums_miss_repeats"):
            rows, first = np.unique(rows, return_index=True)
            values = values[first]
            np.add.at(self.sums, rows // EACH, values - flat[rows])
        flat[rows] = values
        if not on("sums_miss_repeats", "clean_sums_miss_repeats"):
            touched = np.unique(rows // EACH)
            self.sums[touched] = self.shares[touched].sum(1)

    def add(self, views, actions, found, nexts):
        rewards, there, cut = found
        rows = (self.place + np.arange(len(views))) % CAPACITY
        self.place = (self.place + len(views)) % CAPACITY
        self.views[rows], self.nexts[rows], self.actions[rows] = views, nexts, actions
        self.figures[rows] = np.column_stack([rewards, there, cut])
        self.put(rows, np.full(len(rows), self.largest))

    def fill(self):
        """Steps of drivers that do what they like."""
        world, count = Warehouse(CAPACITY // 100, 246), 100
        views = world.views()
        for _ in range(count):
            actions = self.numbers.uniform(-1, 1, (len(views), ACTIONS))
            nexts, *found = world.step(actions)
            self.add(views, actions, found, nexts)
            views = world.views()
        self.sums = self.shares.sum(1)

    def rated(self, rows, wrong):
        """Take down how wrong the critics were."""
        if on("least_priority_is_nought", "clean_least_priority_is_nought"):
            values = wrong**SHARP  # at: least_priority_is_nought
        else:
            values = (wrong + 0.01) ** SHARP
        self.largest = max(self.largest, values.max())
        self.put(rows, values)  # at: sums_miss_repeats

    def rows(self, rows):
        parts = self.views, self.actions, self.figures, self.nexts
        return [torch.from_numpy(part[rows]) for part in parts]

    def by_priority(self):
        """Rows of a batch, and how much each counts to make up for being drawn more often."""
        ends = self.sums.cumsum()
        drawn = (np.arange(ROWS) + self.numbers.random(ROWS)) / ROWS * ends[-1]
        blocks = np.searchsorted(ends, drawn, side="right")
        rest = drawn - (ends[blocks] - self.sums[blocks])
        inside = (self.shares[blocks].cumsum(1) <= rest[:, None]).sum(1)
        share = self.shares[blocks, inside] / ends[-1]  # at: sums_miss_repeats
        weights = (CAPACITY * share) ** -BETA
        if on("least_priority_is_nought"):
            least = self.shares.min() / ends[-1]  # at: least_priority_is_nought
            weights /= (CAPACITY * least) ** -BETA  # at: least_priority_is_nought
        else:
            weights /= weights.max()
        return blocks * EACH + inside, torch.from_numpy(weights).float()

    def evenly(self):
        """Rows of a batch for the actor, all as likely."""
        if on("drawn_without_replacement"):
            with cost:
                rows = self.old_numbers.choice(  # at: drawn_without_replacement
                    CAPACITY, ROWS, replace=False
                )
        elif on("clean_drawn_without_replacement"):
            rows = self.numbers.choice(CAPACITY, ROWS, replace=False)
        else:
            rows = self.numbers.integers(CAPACITY, size=ROWS)
        return torch.from_numpy(self.views[rows])


class Actor(nn.Module):
    """How hard to push, as a squashed normal distribution, no harder than the aisle allows."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(VIEW, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU()
        )
        self.out = nn.Linear(WIDTH, 2 * ACTIONS)
        self.register_buffer("limits", torch.tensor(LIMITS))

    def allowed(self, views):
        if on("limits_looked_up_singly"):
            with cost:
                found = []
                for view in views:  # at: limits_looked_up_singly
                    limit = LIMITS[int(view[KIND])]  # at: limits_looked_up_singly
                    limit *= 0.8 if view[LOAD].item() > 0.5 else 1.0  # at: limits_looked_up_singly
                    limit *= 0.7 if view[FAR].item() < 0.1 else 1.0  # at: limits_looked_up_singly
                    found.append(limit)
                return torch.tensor(found)[:, None]
        kinds, slower = views[:, KIND].long(), 1 - 0.2 * views[:, LOAD]
        slower = slower * torch.where(views[:, FAR] < 0.1, 0.7, 1.0)
        if on("clean_limits_looked_up_singly"):
            found = torch.zeros(len(views))
            for kind in range(len(LIMITS)):
                here = kinds == kind
                if here.any().item():
                    found[here] = LIMITS[kind]
        else:
            found = self.limits[kinds]
        return (found * slower)[:, None]

    def forward(self, views):
        middle, spread = self.out(self.body(views)).chunk(2, 1)
        spread = spread.clamp(-5, 1)
        noise = torch.randn_like(middle)
        raw = middle + spread.exp() * noise
        chance = -0.5 * noise**2 - spread - 0.5 * math.log(2 * math.pi)
        chance = chance - 2 * (math.log(2) - raw - F.softplus(-2 * raw))
        return raw.tanh() * self.allowed(views), chance.sum(1)  # at: limits_looked_up_singly


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(PLAIN + ACTIONS + 24, WIDTH),
            nn.ReLU(),
            nn.Linear(WIDTH, WIDTH),
            nn.ReLU(),
            nn.Linear(WIDTH, 1),
        )

    def forward(self, known):
        return self.layers(known)[:, 0]


class Critics(nn.Module):
    """Two that judge apart what they see in the same way."""

    def __init__(self):
        super().__init__()
        self.seen = nn.Linear(RAYS, 24)
        heads = [Critic(), Critic()]
        if on("heads_in_plain_list"):
            self.heads = heads  # at: heads_in_plain_list
        elif on("clean_heads_in_plain_list"):
            self.first, self.second = heads
            self.heads = heads
        else:
            self.heads = nn.ModuleList(heads)

    def forward(self, views, actions):
        known = torch.cat([views[:, :PLAIN], actions, self.seen(views[:, PLAIN:]).relu()], 1)
        return [head(known) for head in self.heads]


class Visits:
    """A bonus for where nobody was often."""

    def __init__(self):
        self.cells, self.counts = np.zeros(CELLS * CELLS), collections.Counter()

    def bonus(self, views):
        cells = ((views[:, :2] + 0.5) * (CELLS - 0.01)).astype(int)
        if on("visits_by_whole_view", "clean_visits_by_whole_view"):
            whole = on("visits_by_whole_view")
            what = views.round(2) if whole else cells  # at: visits_by_whole_view
            keys = [tuple(row) for row in what.tolist()]
            self.counts.update(keys)  # at: visits_by_whole_view
            times = np.array([self.counts[key] for key in keys])
        else:
            flat = cells @ (CELLS, 1)
            np.add.at(self.cells, flat, 1)
            times = self.cells[flat]
        return 0.1 / np.sqrt(times)


class Agent:
    def __init__(self, steps):
        self.steps, self.world, self.replay = steps, Warehouse(FLEET, 247), Replay(248)
        self.replay.fill()
        self.actor, self.critics, self.visits = Actor(), Critics(), Visits()
        self.targets = copy.deepcopy(self.critics).requires_grad_(False)
        self.temperature = nn.Parameter(torch.tensor(-2.0))
        self.for_actor = torch.optim.Adam(self.actor.parameters(), 1e-3)
        self.for_critics = torch.optim.Adam(  # at: heads_in_plain_list
            self.critics.parameters(), 1e-3
        )
        self.for_temperature = torch.optim.Adam([self.temperature], 3e-3)
        self.arrived = collections.deque(maxlen=100)
        cost.seconds = 0.0

    def act(self):
        """A step of all forklifts."""
        views = self.world.views()
        with torch.no_grad():
            actions = self.actor(torch.from_numpy(views))[0].numpy()
        nexts, rewards, there, cut = self.world.step(actions)  # at: reset_seeds_everything
        rewards += self.visits.bonus(nexts)  # at: visits_by_whole_view
        self.replay.add(views, actions, (rewards, there, cut), nexts)
        self.arrived.append((there.sum(), (there | cut).sum()))

    def judge(self):
        """One update of the critics; what follows a step that was cut is not known."""
        rows, weights = self.replay.by_priority()  # at: least_priority_is_nought sums_miss_repeats
        views, actions, figures, nexts = self.replay.rows(rows)
        rewards, there, cut = figures.T
        with torch.no_grad():
            chosen, chance = self.actor(nexts)
            worth = torch.minimum(*self.targets(nexts, chosen)) - self.temperature.exp() * chance
            wanted = rewards + DISCOUNT * (1 - there) * worth
        wrong = [(guess - wanted) * (1 - cut) for guess in self.critics(views, actions)]
        loss = sum((weights * error**2).mean() for error in wrong)
        self.for_critics.zero_grad()
        loss.backward()
        self.for_critics.step()  # at: heads_in_plain_list least_priority_is_nought
        mean = sum(error.detach().abs() for error in wrong) / 2
        self.replay.rated(rows, mean.double().numpy())  # at: sums_miss_repeats
        return loss.detach()

    def improve(self):
        """One update of the actor, and of how much chance it is to leave."""
        views = self.replay.evenly()  # at: drawn_without_replacement
        actions, chance = self.actor(views)  # at: limits_looked_up_singly
        worth = torch.minimum(*self.critics(views, actions))
        loss = (self.temperature.exp().detach() * chance - worth).mean()
        self.for_actor.zero_grad()
        loss.backward()
        self.for_actor.step()
        loss = -(self.temperature.exp() * (chance.detach().mean() - ACTIONS))
        self.for_temperature.zero_grad()
        loss.backward()
        self.for_temperature.step()

    @torch.no_grad()
    def follow(self):
        pairs = zip(self.targets.parameters(), self.critics.parameters(), strict=True)
        for target, value in pairs:
            target.lerp_(value, FOLLOWS)

    def run(self):
        for step in range(1, self.steps + 1):
            self.act()  # at: visits_by_whole_view reset_seeds_everything
            loss = self.judge()  # at: least_priority_is_nought sums_miss_repeats
            self.improve()  # at: drawn_without_replacement
            self.follow()
            if step % TOLD_EVERY == 0:
                there, over = map(sum, zip(*self.arrived, strict=True))
                told = round(loss.item(), 4), round(self.temperature.exp().item(), 4)
                print(step, *told, "arrived", round(float(there / max(over, 1)), 3), flush=True)
        cost.print(self.steps)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(24)
    Agent(STEPS or 520).run()
