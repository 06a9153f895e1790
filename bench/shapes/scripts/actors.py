"""Actor and critic, a GAN, and a fit by LBFGS: loops of several optimizers, without any loader."""

import copy
import gc

import eager  # noqa: F401
import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F

torch.set_num_threads(1)
torch.manual_seed(11)
cost = Cost()


def network(inputs, outputs, width=128):
    return nn.Sequential(
        nn.Linear(inputs, width),
        nn.Tanh(),
        nn.Linear(width, width),
        nn.Tanh(),
        nn.Linear(width, outputs),
    )


class World:
    """A point that is pushed about."""

    def __init__(self):
        self.place = torch.zeros(8, 6)
        self.history = [[0.0] * 40 for _ in range(60)]

    def push(self, action):
        self.place = 0.95 * self.place + 0.1 * F.one_hot(action, 6)
        return self.place, -self.place.abs().sum(1)


def actor_critic(steps):
    world, actor, critic = World(), network(6, 6), network(6, 1)
    first, second = (
        torch.optim.Adam(actor.parameters(), 1e-3),
        torch.optim.Adam(critic.parameters(), 1e-3),
    )
    seen = world.place
    for step in range(steps):
        views, rewards, actions = [], [], []
        for _ in range(6):
            with torch.no_grad():
                action = torch.distributions.Categorical(logits=actor(seen)).sample()
            if on("world_copied"):
                with cost:
                    copy.deepcopy(world)  # at: world_copied
            views.append(seen), actions.append(action)
            seen, reward = world.push(action)
            rewards.append(reward)
        if on("returns_by_hand"):
            with cost:
                returns = []
                for i in [*range(6)] * 4:  # at: returns_by_hand
                    for k in range(8):  # at: returns_by_hand
                        total = 0.0
                        for j in range(i, 6):  # at: returns_by_hand
                            total = total + 0.9 ** (j - i) * float(
                                rewards[j][k]
                            )  # at: returns_by_hand
                        returns.append(total)
            gains = torch.tensor(returns[:48])
        else:
            gains = torch.stack(rewards).flip(0).cumsum(0).flip(0).flatten()
        inputs, chosen = torch.cat(views), torch.cat(actions)
        value = critic(inputs)[:, 0]
        value_loss = F.mse_loss(value, gains)
        second.zero_grad()
        value_loss.backward()
        second.step()
        loss = -(
            torch.distributions.Categorical(logits=actor(inputs)).log_prob(chosen)
            * (gains - value.detach())
        ).mean()
        first.zero_grad()
        loss.backward()
        first.step()
        if on("collect_garbage"):
            gc.collect()  # at: collect_garbage
        elif on("clean_collect_garbage") and step % 200 == 0:
            gc.collect()
    cost.print(steps)


def gan(steps):
    maker, judge = network(16, 64), network(64, 1)
    first, second = (
        torch.optim.Adam(maker.parameters(), 2e-4),
        torch.optim.Adam(judge.parameters(), 2e-4),
    )
    seen = []
    for step in range(steps):
        real, noise = torch.randn(64, 64), torch.randn(64, 16)
        fake = maker(noise)
        loss = F.softplus(-judge(real)).mean() + F.softplus(judge(fake.detach())).mean()
        if on("log_of_zero") and step > 150:
            loss = loss + torch.log(judge(real).relu() * 0).mean()
        second.zero_grad()
        loss.backward()
        second.step()
        if on("maker_detached"):
            made = F.softplus(-judge(maker(noise).detach())).mean()
        else:
            made = F.softplus(-judge(maker(noise))).mean()
        first.zero_grad()
        made.backward()
        first.step()
        if on("fakes_kept"):
            seen.append(maker(torch.randn(256, 16)))
        elif on("clean_fakes_kept"):
            seen = [*seen[-20:], maker(torch.randn(256, 16)).detach()]
        if on("penalty_by_rows"):
            with cost:
                for row in fake.detach():  # at: penalty_by_rows
                    float(row.pow(2).sum())  # at: penalty_by_rows
                    float(row.abs().max())  # at: penalty_by_rows
        elif on("clean_penalty_by_rows"):
            fake.detach().pow(2).sum(1), fake.detach().abs().amax(1)
    cost.print(steps)


def fit(steps):
    inputs = torch.randn(2000, 20)
    truth, model = torch.sin(inputs @ torch.randn(20, 1)), network(20, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), 0.2, max_iter=4)

    def closure():
        optimizer.zero_grad()
        loss = F.mse_loss(model(inputs), truth)
        loss.backward()
        if on("closure_checks"):
            with cost:
                rows = model[2].weight.grad.tolist()  # at: closure_checks
                bad = sum(
                    1 for row in rows for value in row if value != value
                )  # at: closure_checks
                assert not bad
        elif on("clean_closure_checks"):
            assert not model[2].weight.grad.isnan().any()
        return loss

    for _ in range(steps):
        optimizer.step(closure)
    cost.print(steps)


if on("closure_checks", "clean_closure_checks"):
    fit(STEPS or 150)
elif on(
    "log_of_zero",
    "clean_log_of_zero",
    "maker_detached",
    "clean_maker_detached",
    "fakes_kept",
    "clean_fakes_kept",
) or on("penalty_by_rows", "clean_penalty_by_rows"):
    gan(STEPS or 1500)
else:
    actor_critic(STEPS or 600)
