"""Advantage actor and critic on a cart in plain Python, two optimizers; returns by a recursion."""

import math
import random

import eager  # noqa: F401
import torch
from shape import STEPS, Cost, on
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(9)
random.seed(9)
cost = Cost()
updates, horizon = STEPS or 350, 16


class Cart:
    """A pole on a cart, by small steps of Euler."""

    def __init__(self, substeps):
        self.substeps = substeps
        self.reset()

    def reset(self):
        self.x = self.v = self.w = 0.0
        self.angle = random.uniform(-0.05, 0.05)
        return self.view()

    def view(self):
        return [self.x, self.v, self.angle, self.w]

    def physics(self, force, dt):
        sine, cosine = math.sin(self.angle), math.cos(self.angle)  # at: env_substeps
        push = (force + 0.05 * self.w * self.w * sine) / 1.1  # at: env_substeps
        turn = (9.8 * sine - cosine * push) / (  # at: env_substeps
            0.5 * (1.33 - 0.1 * cosine * cosine / 1.1)  # at: env_substeps
        )  # at: env_substeps
        slide = push - 0.05 * turn * cosine / 1.1  # at: env_substeps
        self.x, self.v = self.x + dt * self.v, self.v + dt * slide  # at: env_substeps
        self.angle, self.w = self.angle + dt * self.w, self.w + dt * turn  # at: env_substeps

    def step(self, action):
        for _ in range(self.substeps):  # at: env_substeps
            self.physics(10.0 if action else -10.0, 0.02 / self.substeps)  # at: env_substeps
        fallen = abs(self.angle) > 0.2 or abs(self.x) > 2.4
        return self.view(), 1.0, fallen


def collect(env, view):
    views, actions, rewards, ends = [], [], [], []
    for _ in range(horizon):
        with torch.no_grad():
            logits = actor(torch.tensor(view))
        action = int(torch.distributions.Categorical(logits=logits).sample())
        if on("env_substeps"):
            with cost:
                new, reward, end = env.step(action)  # at: env_substeps
        else:
            new, reward, end = env.step(action)
        views.append(view), actions.append(action), rewards.append(reward), ends.append(end)
        view = env.reset() if end else new
    return torch.tensor(views), torch.tensor(actions), rewards, ends, view


def advantages(rewards, ends, values):
    rewards, keep = torch.tensor(rewards), 1 - torch.tensor(ends).float()
    gains = torch.zeros(horizon)
    if on("gae_by_element"):
        with cost:
            for t in range(horizon):  # at: gae_by_element
                weight = torch.tensor(1.0)  # at: gae_by_element
                for k in range(t, horizon):  # at: gae_by_element
                    ahead = values[k + 1] if k + 1 < horizon else values[k]  # at: gae_by_element
                    delta = rewards[k] + 0.99 * ahead * keep[k] - values[k]  # at: gae_by_element
                    gains[t] += weight * delta  # at: gae_by_element
                    weight = weight * 0.95 * 0.99 * keep[k]  # at: gae_by_element
        return gains
    ahead = torch.cat([values[1:], values[-1:]])
    deltas, last = (rewards + 0.99 * ahead * keep - values).tolist(), 0.0
    for t in reversed(range(horizon)):
        last = deltas[t] + 0.94 * last * (not ends[t])
        gains[t] = last
    return gains


actor = nn.Sequential(
    nn.Linear(4, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 2)
)
critic = nn.Sequential(
    nn.Linear(4, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 1)
)
actor_optimizer = torch.optim.Adam(actor.parameters(), 1e-3)
critic_optimizer = torch.optim.Adam(critic.parameters(), 1e-3)
cart = Cart(120 if on("env_substeps") else 2)
view = cart.reset()
for update in range(updates):
    views, actions, rewards, ends, view = collect(cart, view)
    values = critic(views)[:, 0]
    gains = advantages(rewards, ends, values.detach())
    odds = torch.distributions.Categorical(logits=actor(views))
    actor_loss = -(odds.log_prob(actions) * gains).mean() - 0.01 * odds.entropy().mean()
    critic_loss = (values - (gains + values.detach())).square().mean()
    actor_optimizer.zero_grad()
    actor_loss.backward()
    actor_optimizer.step()
    if not on("critic_not_zeroed"):
        critic_optimizer.zero_grad()
    critic_loss.backward()
    critic_optimizer.step()
    if on("tensors_printed") or (on("clean_tensors_printed") and update % 50 == 0):
        with cost:
            print(  # at: tensors_printed
                "update",  # at: tensors_printed
                update,  # at: tensors_printed
                "values",  # at: tensors_printed
                values,  # at: tensors_printed
                "gains",  # at: tensors_printed
                gains,  # at: tensors_printed
                "odds",  # at: tensors_printed
                odds.logits,  # at: tensors_printed
            )  # at: tensors_printed
cost.print(updates)
