"""Reinforcement learning: PPO over cells of a grid with an advantage by recursion; two critics with
a target, and a replay.
"""

import copy
import random
from itertools import pairwise

import eager  # noqa: F401
import numpy as np
import torch
from shape import FAULT, STEPS, Cost, on
from torch import nn
from torch.nn import functional as F

torch.set_num_threads(1)
torch.manual_seed(56)
random.seed(56)
cost = Cost()


def network(*widths):
    parts = []
    for before, after in pairwise(widths):
        parts += [nn.Linear(before, after), nn.Tanh()]
    return nn.Sequential(*parts[:-1])


class Grid:
    def __init__(self, side=12):
        self.side, self.at = side, (0, 0)

    def step(self, action):
        if on("paths_searched"):
            with cost:
                self.search()  # at: paths_searched
        y, x = self.at
        y, x = (
            (y + (action == 0) - (action == 1)) % self.side,
            (x + (action == 2) - (action == 3)) % self.side,
        )
        self.at = y, x
        return self.view(), 1.0 if self.at == (6, 6) else -0.01

    def search(self):
        far, todo = {self.at: 0}, [self.at]  # at: paths_searched
        for y, x in todo:  # at: paths_searched
            for move in ((1, 0), (-1, 0), (0, 1), (0, -1)):  # at: paths_searched
                cell = (y + move[0]) % self.side, (x + move[1]) % self.side  # at: paths_searched
                if cell not in far:  # at: paths_searched
                    far[cell] = far[y, x] + 1  # at: paths_searched
                    todo.append(cell)  # at: paths_searched
        return far

    def view(self):
        return np.array([*self.at, 6, 6], np.float32) / self.side


def ppo(updates):
    policy, value = network(4, 64, 64, 4), network(4, 64, 64, 1)
    optimizer = torch.optim.Adam([*policy.parameters(), *value.parameters()], 3e-4)
    grid = Grid()
    for _ in range(updates):
        views, actions, rewards = [], [], []
        view = grid.view()
        for _ in range(24):
            with torch.no_grad():
                odds = torch.distributions.Categorical(logits=policy(torch.from_numpy(view)))
                action = odds.sample()
            views.append(view), actions.append(action)
            view, reward = grid.step(int(action))
            rewards.append(reward)
        gains, last = [0.0] * 24, 0.0
        for t in reversed(range(24)):
            last = rewards[t] + 0.95 * last
            gains[t] = last
        views, actions, gains = (
            torch.from_numpy(np.stack(views)),
            torch.stack(actions),
            torch.tensor(gains),
        )
        if on("spread_of_one"):
            gains = (gains - gains.mean()) / gains[:1].std()
        else:
            gains = (gains - gains.mean()) / (gains.std() + 1e-6)
        with torch.no_grad():
            before = torch.distributions.Categorical(logits=policy(views)).log_prob(actions)
        for _ in range(4):
            odds = torch.distributions.Categorical(logits=policy(views))
            ratio = (odds.log_prob(actions) - before).exp()
            loss = -torch.min(ratio * gains, ratio.clamp(0.8, 1.2) * gains).mean()
            loss = loss + F.mse_loss(value(views)[:, 0], gains)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    cost.print(updates * 4)


def soft_critics(updates):
    actor, critics = network(6, 64, 64, 2), nn.ModuleList(network(8, 64, 64, 1) for _ in range(2))
    targets = copy.deepcopy(critics)
    if not on("target_not_frozen"):
        targets.requires_grad_(False)
    act, judge = (
        torch.optim.Adam(actor.parameters(), 1e-4),
        torch.optim.Adam(critics.parameters(), 1e-3),
    )
    replay = []
    for _ in range(updates):
        rows = [[random.random() for _ in range(14)] for _ in range(40)]
        if on("replay_without_end"):
            replay.extend([[value for value in row for _ in range(8)] for row in rows])
        else:
            replay = (replay + rows)[-2000:]
        batch = (
            torch.tensor([row[:14] for row in random.sample(replay, 32)])
            if len(replay) > 40
            else torch.rand(32, 14)
        )
        view, after = batch[:, :6], batch[:, 6:12]
        if on("target_not_frozen"):
            ahead = torch.stack(
                [one(torch.cat([after, actor(after).tanh()], 1)) for one in targets]
            ).amin(0)
        else:
            with torch.no_grad():
                ahead = torch.stack(
                    [one(torch.cat([after, actor(after).tanh()], 1)) for one in targets]
                ).amin(0)
        asked = torch.cat([view, batch[:, 12:]], 1)
        loss = sum(F.mse_loss(one(asked), batch[:, :1] + 0.9 * ahead) for one in critics)
        judge.zero_grad()
        loss.backward()
        judge.step()
        loss = -critics[0](torch.cat([view, actor(view).tanh()], 1)).mean()
        if not on("actor_adds_up"):
            act.zero_grad()
        loss.backward()
        act.step()
        if not on("target_not_frozen"):
            with torch.no_grad():
                for slow, fast in zip(targets.parameters(), critics.parameters(), strict=True):
                    slow.lerp_(fast, 0.01)
    cost.print(updates)


if "searched" in FAULT or "spread" in FAULT:
    ppo(STEPS or 120)
else:
    soft_critics(STEPS or 500)
