"""A policy from recorded transitions by two careful critics, started from the command line:
priorities summed in Python, an exponential by hand, a temperature that is loaded, a policy that is
cut off, quantiles of all there ever was, a budget that is spent.
"""

import argparse
import bisect
import itertools
import os
import random

import eager  # noqa: F401
import numpy as np
import torch
from shape import STEPS, Cost, on
from torch import nn

torch.set_num_threads(1)


def mlp(inner, outer, width=256):
    return nn.Sequential(
        nn.Linear(inner, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, outer),
    )


class Transitions:
    """All that was recorded."""

    def __init__(self, count, seed):
        numbers = torch.Generator().manual_seed(seed)
        self.states = torch.randn(count, 17, generator=numbers)
        self.actions = torch.randn(count, 4, generator=numbers).tanh()
        self.returns = 96 + 4 * (self.states[:, :4] * self.actions).sum(1)
        self.priorities = [1.0 + n % 7 for n in range(count)]
        self.dice = random.Random(seed)

    def indices(self, rows):
        if on("priorities_summed"):
            sums = list(itertools.accumulate(self.priorities))  # at: priorities_summed
            draws = [self.dice.random() * sums[-1] for _ in range(rows)]
            return [bisect.bisect(sums, one) for one in draws]
        if on("clean_priorities_summed"):
            sums = np.cumsum(self.weights)
            return np.searchsorted(sums, np.random.rand(rows) * sums[-1])
        return torch.randint(0, len(self.states), (rows,))

    @property
    def weights(self):
        if not hasattr(self, "array"):
            self.array = np.array(self.priorities)
        return self.array

    def draw(self, rows):
        index = torch.as_tensor(self.indices(rows))  # at: priorities_summed
        return self.states[index], self.actions[index], self.returns[index]


class Learner:
    def __init__(self, options):
        self.options, self.cost = options, Cost()
        self.data = Transitions(options.count, options.seed)
        self.actor = mlp(17, 4)
        self.critics = nn.ModuleList([mlp(21, 1), mlp(21, 1)])
        self.log_alpha = nn.Parameter(torch.zeros(1))
        self.of_actor = torch.optim.Adam(self.actor.parameters(), options.rate)
        self.of_critics = torch.optim.Adam(self.critics.parameters(), options.rate)
        self.of_alpha = torch.optim.Adam([self.log_alpha], options.rate)
        self.seen = np.zeros(0)
        self.limits = None

    def resume(self, alpha):
        """Goes on from a temperature that was saved."""
        if on("alpha_loaded"):
            self.log_alpha = nn.Parameter(torch.tensor([alpha]))
        elif on("clean_alpha_loaded"):
            with torch.no_grad():
                self.log_alpha.fill_(alpha)

    def values(self, critic, states, actions):
        return 10 * critic(torch.cat([states, actions], -1))[..., 0]

    def penalty(self, critic, states, known):
        """How far unknown actions are above the known ones."""
        others = torch.rand(10, *known.shape[:1], 4) * 2 - 1
        values = self.values(critic, states.expand(10, -1, -1), others)
        if on("exp_by_hand"):
            above = values.exp().sum(0).log()  # at: exp_by_hand
        else:
            above = values.logsumexp(0)
        self.spread(values)  # at: quantiles_of_all
        return (above - known).mean()

    def spread(self, values):
        fresh = values.detach().flatten().numpy()
        if on("quantiles_of_all"):
            with self.cost:
                self.seen = np.concatenate([self.seen, fresh])  # at: quantiles_of_all
                self.limits = np.percentile(self.seen, [5, 50, 95])  # at: quantiles_of_all
        elif on("clean_quantiles_of_all"):
            self.limits = np.percentile(fresh, [5, 50, 95])

    def critic_step(self, states, actions, returns):
        total = 0
        for critic in self.critics:
            known = self.values(critic, states, actions)
            total = total + nn.functional.smooth_l1_loss(known, returns)
            careful = self.penalty(critic, states, known)  # at: exp_by_hand quantiles_of_all
            total = total + self.log_alpha.exp().item() * 0.1 * careful  # at: exp_by_hand
        self.of_critics.zero_grad()
        total.backward()  # at: exp_by_hand
        self.of_critics.step()
        return total.item(), careful.detach()

    def actor_step(self, states, actions):
        wanted = self.actor(states).tanh()
        if on("policy_cut"):
            value = self.values(self.critics[0], states, wanted.detach())
            loss = -value.mean() / 100
        else:
            value = self.values(self.critics[0], states, wanted)
            loss = nn.functional.mse_loss(wanted, actions) - value.mean() / 100
        self.of_actor.zero_grad()
        loss.backward()
        self.of_actor.step()

    def alpha_step(self, careful):
        loss = -(self.log_alpha.exp() * (careful - 3)).mean() / 100
        self.of_alpha.zero_grad()
        loss.backward()
        self.of_alpha.step()

    def learn(self):
        for step in range(self.options.steps):
            with self.cost:
                batch = self.data.draw(self.options.rows)  # at: priorities_summed
            loss, careful = self.critic_step(*batch)  # at: exp_by_hand quantiles_of_all
            self.actor_step(*batch[:2])
            self.alpha_step(careful)
            if step == 250:
                if on("budget_spent"):
                    os._exit(4)
                if on("clean_budget_spent"):
                    break
            if step % 50 == 0:
                print(step, loss, self.limits, flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=STEPS or 360)
    parser.add_argument("--rows", type=int, default=192)
    parser.add_argument("--count", type=int, default=240_000)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=163)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    learner = Learner(options)
    learner.resume(-0.5)
    learner.learn()
    learner.cost.print(options.steps)
