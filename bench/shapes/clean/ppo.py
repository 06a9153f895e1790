"""PPO on eight pole-balancing environments that step as one batch; four epochs of minibatches."""

import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical


class Poles:
    """Cart poles, all at once."""

    def __init__(self, count, seed):
        self.random = np.random.default_rng(seed)
        self.state = self.random.uniform(-0.05, 0.05, (count, 4))
        self.age = np.zeros(count, int)

    def step(self, actions):
        x, v, theta, omega = self.state.T
        force = np.where(actions == 1, 10.0, -10.0)
        sin, cos = np.sin(theta), np.cos(theta)
        temp = (force + 0.05 * omega**2 * sin) / 1.1
        acc = (9.8 * sin - cos * temp) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
        push = temp - 0.05 * acc * cos / 1.1
        self.state = np.stack(
            [x + 0.02 * v, v + 0.02 * push, theta + 0.02 * omega, omega + 0.02 * acc], 1
        )
        self.age += 1
        done = (abs(self.state[:, 0]) > 2.4) | (abs(self.state[:, 2]) > 0.21) | (self.age > 200)
        fresh = self.random.uniform(-0.05, 0.05, self.state.shape)
        self.state = np.where(done[:, None], fresh, self.state)
        self.age[done] = 0
        return self.state.astype(np.float32), np.ones(len(x), np.float32), done


def layer(i, o, gain=2**0.5):
    made = nn.Linear(i, o)
    nn.init.orthogonal_(made.weight, gain)
    return made


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor = nn.Sequential(
            layer(4, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, 2, 0.01)
        )
        self.critic = nn.Sequential(layer(4, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, 1))

    def act(self, x, action=None):
        chosen = Categorical(logits=self.actor(x))
        action = chosen.sample() if action is None else action
        return action, chosen.log_prob(action), chosen.entropy(), self.critic(x)[:, 0]


torch.manual_seed(1)
count, length, updates = 8, 64, 60
envs, agent = Poles(count, 1), Agent()
optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)
observation, finished = torch.tensor(envs.state.astype(np.float32)), torch.zeros(count)
for update in range(updates):
    optimizer.param_groups[0]["lr"] = (1 - update / updates) * 2.5e-4
    seen = {name: [] for name in ("x", "action", "logp", "reward", "done", "value")}
    for _ in range(length):
        with torch.no_grad():
            action, logp, _, value = agent.act(observation)
        state, reward, done = envs.step(action.numpy())
        for name, part in zip(
            seen, (observation, action, logp, torch.tensor(reward), finished, value), strict=False
        ):
            seen[name].append(part)
        observation, finished = torch.tensor(state), torch.tensor(done.astype(np.float32))
    seen = {name: torch.stack(parts) for name, parts in seen.items()}
    with torch.no_grad():
        following = agent.critic(observation)[:, 0]
        advantages, last = torch.zeros(length, count), 0
        for t in reversed(range(length)):
            alive = 1 - (finished if t == length - 1 else seen["done"][t + 1])
            after = following if t == length - 1 else seen["value"][t + 1]
            delta = seen["reward"][t] + 0.99 * after * alive - seen["value"][t]
            advantages[t] = last = delta + 0.99 * 0.95 * alive * last
        returns = (advantages + seen["value"]).flatten()
    flat = {name: part.flatten(0, 1) for name, part in seen.items()}
    advantages = advantages.flatten()
    for _ in range(4):
        for index in torch.randperm(count * length).split(128):
            _, logp, entropy, value = agent.act(flat["x"][index], flat["action"][index])
            ratio = (logp - flat["logp"][index]).exp()
            gain = advantages[index]
            gain = (gain - gain.mean()) / (gain.std() + 1e-8)
            policy = torch.max(-gain * ratio, -gain * ratio.clamp(0.8, 1.2)).mean()
            loss = policy - 0.01 * entropy.mean() + 0.25 * (value - returns[index]).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()
    if update % 10 == 0:
        print(f"update {update} mean age {envs.age.mean():.1f} loss {loss.item():.3f}")
