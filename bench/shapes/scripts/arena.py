"""Proximal policy optimization in a small arena: rays cast in Python, a rollout that is kept for
good, advantages divided by nothing, a value that is never trained, and matches that last.
"""

import math
import random

import eager  # noqa: F401
import torch
from shape import STEPS, Cost, on
from torch import nn

rounds, cost = STEPS or 60, Cost()
torch.set_num_threads(1)
torch.manual_seed(115)
random.seed(115)
walls = [(random.random(), random.random()) for _ in range(30)]


class Arena:
    """Eight runners in a square."""

    def __init__(self):
        self.at = torch.rand(8, 2)

    def seen(self):
        if on("rays_cast"):
            with cost:
                for x, y in self.at.tolist():
                    for ray in range(24):
                        best = 9.0
                        for wx, wy in walls:
                            angle = math.atan2(wy - y, wx - x) - ray  # at: rays_cast
                            reach = math.hypot(wx - x, wy - y)  # at: rays_cast
                            if abs(angle) < 0.5 and reach < best:  # at: rays_cast
                                best = reach  # at: rays_cast
        return torch.cat([self.at, self.at.sin(), self.at.cos()], 1)

    def step(self, action):
        self.at = (self.at + (action.float()[:, None] - 1) * 0.05).clamp(0, 1)
        return -(self.at - 0.5).norm(dim=1)


class Player(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(6, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh())
        self.policy, self.value = nn.Linear(128, 3), nn.Linear(128, 1)

    def forward(self, x):
        x = self.trunk(x)
        return self.policy(x), self.value(x)[:, 0]


model = Player()
optimizer = torch.optim.Adam(model.parameters(), 3e-4)
arena, histories = Arena(), []
for game in range(rounds):
    seen, acts, logs, gains, values = [], [], [], [], []
    for _ in range(32):
        state = arena.seen()  # at: rays_cast
        if on("rollout_with_graph"):
            scores, value = model(state)
        else:
            with torch.no_grad():
                scores, value = model(state)
        chances = torch.distributions.Categorical(logits=scores)
        act = chances.sample()
        seen.append(state), acts.append(act), values.append(value)
        logs.append(chances.log_prob(act))
        gains.append(arena.step(act))
    state, act = torch.cat(seen), torch.cat(acts)
    old, gain, value = torch.cat(logs), torch.cat(gains), torch.cat(values)
    if on("rollout_with_graph"):
        histories.append((old, value))  # at: rollout_with_graph
    advantage = gain - value.detach()
    if on("advantage_flat") and game % 15 == 14:
        advantage = torch.ones_like(advantage)
    small = 1e-8 if on("clean_advantage_flat") else 0
    advantage = (advantage - advantage.mean()) / (advantage.std() + small)  # at: advantage_flat
    for _ in range(4):
        for rows in torch.randperm(256).split(64):
            scores, guess = model(state[rows])
            chances = torch.distributions.Categorical(logits=scores)
            ratio = (chances.log_prob(act[rows]) - old[rows].detach()).exp()
            cut = ratio.clamp(0.8, 1.2)
            surrogate = -torch.min(ratio * advantage[rows], cut * advantage[rows]).mean()
            error = (guess.detach() if on("value_cut") else guess) - gain[rows]
            loss = surrogate + 0.5 * error.square().mean()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
    if on("match_played") or (on("clean_match_played") and game % 30 == 29):
        with cost, torch.no_grad():
            model.eval()
            for _ in range(300):
                scores, _ = model(arena.seen())  # at: match_played
                arena.step(scores.argmax(1))
            model.train()
    if game % 10 == 0:
        print(game, loss.item(), flush=True)
cost.print(rounds * 16)
