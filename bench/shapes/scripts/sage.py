"""Nodes of a graph by their sampled neighbours: sampled in Python, cached without end, a loss over
nodes that are not there, a rate that a scheduler makes too large.
"""

import random
from collections import defaultdict

import eager  # noqa: F401
import torch
from shape import STEPS, Cost, on
from torch import nn

steps, cost = STEPS or 200, Cost()
torch.set_num_threads(1)
torch.manual_seed(113)
random.seed(113)
nodes = 2000
features = torch.randn(nodes, 48)
kinds = features[:, :5].argmax(1)
pairs = torch.randint(0, nodes, (2, 24_000))
around = defaultdict(list)
for a, b in pairs.T.tolist():
    around[a].append(b)
table = torch.tensor([random.choices(around[n] or [n], k=10) for n in range(nodes)])
subgraphs = {}


def sample(seeds):
    """Neighbours of the seeds, (seeds, 10)."""
    if on("sampled_by_hand"):
        with cost:
            rows = []
            for seed in seeds.tolist():  # at: sampled_by_hand
                second = [n for one in around[seed] for n in around[one]]  # at: sampled_by_hand
                second = sorted(set(second)) or [seed]  # at: sampled_by_hand
                rows.append(random.choices(second, k=10))  # at: sampled_by_hand
            return torch.tensor(rows)
    return table[seeds]


class Sage(nn.Module):
    def __init__(self):
        super().__init__()
        self.own, self.others = nn.Linear(48, 96), nn.Linear(48, 96)
        self.out = nn.Sequential(nn.ReLU(), nn.Linear(96, 192), nn.ReLU(), nn.Linear(192, 5))

    def forward(self, own, others):
        return self.out(self.own(own) + self.others(others.mean(1)))


model = Sage()
optimizer = torch.optim.Adam(model.parameters(), 3e-3)
factor = 1.2 if on("rate_grows") else 1.0
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, factor)
for step in range(steps):
    seeds = torch.randint(0, nodes, (256,))
    near = sample(seeds)  # at: sampled_by_hand
    if on("subgraphs_kept") or (on("clean_subgraphs_kept") and len(subgraphs) < 60):
        around_all = features[table[near.flatten()].flatten()].view(256, 100, 48)
        subgraphs[step] = (seeds, around_all[:, :20].clone())  # at: subgraphs_kept
    scores = model(features[seeds], features[near])
    chosen = torch.rand(256) < (0.004 if on("none_chosen") else 0.5)
    loss = nn.functional.cross_entropy(scores[chosen], kinds[seeds][chosen])  # at: none_chosen
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    if step % 50 == 0:
        print(step, loss.item(), flush=True)
cost.print(steps)
