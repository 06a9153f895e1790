"""DQN on a grid world in plain Python, replay, a target network; and PPO with several epochs a
rollout.
"""

import copy
import math
import random

import eager  # noqa: F401
import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F

torch.set_num_threads(1)
torch.manual_seed(5)
random.seed(5)
cost = Cost()


class Grid:
    """A walker that must reach a corner; its view is drawn in Python."""

    def __init__(self, detail):
        self.detail, self.at = detail, [0, 0]

    def reset(self):
        self.at = [random.randrange(8), random.randrange(8)]
        return self.view()

    def view(self):
        seen = [self.at[0] / 8, self.at[1] / 8, 0.0, 0.0]
        for k in range(self.detail):  # at: slow_env slow_rollout
            seen[2] += math.sin(k * self.at[0]) / (k + 1)  # at: slow_env slow_rollout
            seen[3] += math.cos(k * self.at[1]) / (k + 1)  # at: slow_env slow_rollout
        return seen  # at: slow_env slow_rollout

    def step(self, action):
        self.at[action % 2] = max(0, min(7, self.at[action % 2] + (1 if action < 2 else -1)))
        done = self.at == [7, 7] or random.random() < 0.02
        return self.view(), 1.0 if self.at == [7, 7] else -0.01, done  # at: slow_env slow_rollout


def network(outputs):
    return nn.Sequential(
        nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, outputs)
    )


def dqn(steps):
    env, q = Grid(3000 if on("slow_env") else 10), network(4)
    target, optimizer = copy.deepcopy(q), torch.optim.Adam(q.parameters(), 1e-3)
    seen, replay = env.reset(), []
    for step in range(steps):
        if random.random() < max(0.05, 1 - step / 500):
            action = random.randrange(4)
        else:
            with torch.no_grad():
                action = int(q(torch.tensor(seen)[None]).argmax())
        if on("slow_env"):
            with cost:
                new, reward, end = env.step(action)  # at: slow_env
        else:
            new, reward, end = env.step(action)
        replay.append((seen, action, reward, new, end))
        seen = env.reset() if end else new
        if step < 50:
            continue
        if on("python_replay"):
            with cost:
                rows = random.sample(replay[-2000:] * 4, 64)  # at: python_replay
                views = [[float(x) for x in row[0]] for row in rows * 12]  # at: python_replay
                old = torch.tensor(views)[:64]  # at: python_replay
        else:
            rows = random.choices(replay, k=64)
            old = torch.tensor([row[0] for row in rows])
        new_views = torch.tensor([row[3] for row in rows])
        rewards, ends = (
            torch.tensor([row[2] for row in rows]),
            torch.tensor([float(row[4]) for row in rows]),
        )
        with torch.no_grad():
            goal = rewards + 0.99 * (1 - ends) * target(new_views).max(1).values
        value = q(old).gather(1, torch.tensor([[row[1]] for row in rows]))[:, 0]
        loss = F.smooth_l1_loss(value, goal)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 200 == 0:
            target.load_state_dict(q.state_dict())
    cost.print(steps)


def ppo(rounds):
    env, actor = Grid(600 if on("slow_rollout") else 10), network(5)
    optimizer = torch.optim.Adam(actor.parameters(), 3e-4)
    seen = env.reset()
    for _ in range(rounds):
        views, actions, rewards = [], [], []
        for _ in range(128):
            with torch.no_grad():
                logits = actor(torch.tensor(seen)[None])[0, :4]
            action = int(torch.distributions.Categorical(logits=logits).sample())
            if on("slow_rollout"):
                with cost:
                    new, reward, end = env.step(action)  # at: slow_rollout
            else:
                new, reward, end = env.step(action)
            views.append(seen), actions.append(action), rewards.append(reward)
            seen = env.reset() if end else new
        views, actions = torch.tensor(views), torch.tensor(actions)
        gain = torch.tensor(rewards).flip(0).cumsum(0).flip(0) * 0.1
        with torch.no_grad():
            before = torch.distributions.Categorical(logits=actor(views)[:, :4]).log_prob(actions)
        for _ in range(4):
            for rows in torch.randperm(128).chunk(4):
                out = actor(views[rows])
                now = torch.distributions.Categorical(logits=out[:, :4]).log_prob(actions[rows])
                ratio, plus = (now - before[rows]).exp(), gain[rows] - out[:, 4].detach()
                loss = -torch.min(ratio * plus, ratio.clamp(0.8, 1.2) * plus).mean()
                loss = loss + 0.5 * F.mse_loss(out[:, 4], gain[rows])
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(actor.parameters(), 0.5)
                optimizer.step()
    cost.print(rounds * 16)


if on("slow_rollout", "clean_slow_rollout"):
    ppo(STEPS or 30)
else:
    dqn(STEPS or (1500 if on("slow_env", "python_replay") else 3000))
