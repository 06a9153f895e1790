"""An actor and a critic with an optimizer each, in a while loop over an environment of tensors."""

import copy
import random

import eager  # noqa: F401
import torch
from shape import STEPS, Cost, on
from torch import nn

steps, cost = STEPS or 450, Cost()
torch.set_num_threads(1)
torch.manual_seed(62)


def network(inputs, outputs):
    return nn.Sequential(
        nn.Linear(inputs, 192), nn.Tanh(), nn.Linear(192, 192), nn.Tanh(), nn.Linear(192, outputs)
    )


actor, critic = network(24, 4), network(28, 1)
target = copy.deepcopy(critic)
temperature = nn.Parameter(torch.zeros(1))
for_actor = torch.optim.Adam([*actor.parameters(), temperature], 3e-4)
for_critic = torch.optim.Adam(critic.parameters(), 1e-3)
memory, batch = [], 256


def remembered():
    """A batch of the past."""
    if on("memory_of_lists"):
        with cost:
            picks = random.sample(memory, batch)
            states = torch.tensor([one[0] for one in picks])  # at: memory_of_lists
            after = torch.tensor([one[1] for one in picks])  # at: memory_of_lists
            rewards = torch.tensor([one[2] for one in picks])  # at: memory_of_lists
            return states, after, rewards
    picks = random.sample(memory, batch)
    return tuple(torch.stack([one[k] for one in picks]) for k in range(3))


for _ in range(1500):
    row = (torch.randn(24), torch.randn(24), torch.randn(()))
    if on("memory_of_lists"):
        row = (row[0].tolist(), row[1].tolist(), row[2].item())
    memory.append(row)
step = 0
while step < steps:
    states, after, rewards = remembered()
    with torch.no_grad():
        wanted = rewards + 0.9 * target(torch.cat([after, actor(after)], 1)).squeeze(1)
    worth = critic(torch.cat([states, actor(states).detach()], 1)).squeeze(1)
    critic_loss = (worth - wanted).pow(2).mean()
    for_critic.zero_grad()
    critic_loss.backward()
    if not on("critic_never_steps"):
        for_critic.step()
    actions = actor(states)
    scale = temperature.detach() if on("temperature_detached") else temperature
    actor_loss = -critic(torch.cat([states, actions], 1)).mean()
    actor_loss = actor_loss + (scale.exp() * actions.pow(2).mean()).sum()
    for_actor.zero_grad()
    actor_loss.backward()
    for_actor.step()
    if on("target_copied"):
        with cost:
            for _ in range(4):
                target = copy.deepcopy(critic)  # at: target_copied
    elif on("clean_target_copied"):
        target.load_state_dict(critic.state_dict())
    else:
        with torch.no_grad():
            for old, new in zip(target.parameters(), critic.parameters(), strict=True):
                old.lerp_(new, 0.01)
    if on("returns_grow", "clean_returns_grow"):
        memory.append((states[0], after[0], worth.sum() if on("returns_grow") else rewards[0]))
        if on("clean_returns_grow"):
            memory.pop(0)
    step += 1
cost.print(steps)
