"""Contrastive pairs with a frozen target, and a functional training by torch.func; tabular data
with an MLP.
"""

import random
import time

import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
torch.manual_seed(8)
random.seed(8)
cost = Cost()


class Rows(Dataset):
    """A table as a list of dictionaries."""

    def __init__(self, count):
        self.rows = [{f"c{k}": random.random() for k in range(24)} for _ in range(count)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        row = self.rows[index]
        if on("dict_rows"):
            with cost:
                words = [f"{value:.6f}" for value in row.values()] * 6
                return torch.tensor([float(word) for word in words][:24])
        return torch.tensor(list(row.values()))


def tabular(steps):
    count = 1280 if on("epoch_starts") else 1920
    options = {"num_workers": 1} if on("epoch_starts", "clean_epoch_starts") else {}
    if on("clean_epoch_starts"):
        options["persistent_workers"] = True
    loader = DataLoader(Rows(count), 64, **options)  # at: dict_rows epoch_starts
    net = nn.Sequential(
        nn.Linear(24, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1)
    )
    optimizer, done = torch.optim.Adam(net.parameters(), 1e-3), 0
    while done < steps:
        for rows in loader:
            loss = F.mse_loss(net(rows)[:, 0], rows.sum(1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            done += 1
    cost.print(steps)


def pairs(steps):
    encoder = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
    head = nn.Linear(64, 64)
    both = [*encoder.parameters(), *head.parameters()]
    optimizer = torch.optim.SGD(both, 0.05)
    data = torch.randn(2048, 64)
    for _ in range(steps):
        x = data[torch.randint(0, 2048, (64,))]
        if on("augment"):
            with cost:
                rows, draw = x.tolist(), random.gauss
                noisy = [[value + draw(0, 0.1) for value in row] for row in rows]  # at: augment
                a = encoder(torch.tensor(noisy))  # at: augment
        else:
            a = encoder(x + 0.1 * torch.randn_like(x))
        b = encoder(x + 0.1 * torch.randn_like(x))
        if on("detached"):
            a, b = a.detach(), b.detach()
        elif on("clean_detached"):
            b = b.detach()
        scores = F.normalize(head(a), dim=1) @ F.normalize(b, dim=1).T * 5
        loss = F.cross_entropy(scores, torch.arange(64))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    cost.print(steps)


def functional(steps):
    net = nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 1))
    weights = {name: one.detach() for name, one in net.named_parameters()}
    x = torch.randn(256, 32)
    y = x.sum(1, keepdim=True)
    from torch.func import functional_call, grad

    slope = grad(lambda w: F.mse_loss(functional_call(net, w, (x,)), y))
    momentum = torch.optim.SGD([nn.Parameter(one.clone()) for one in weights.values()], 0.01)
    for _ in range(steps):
        gradients = slope(weights)
        for one, g in zip(momentum.param_groups[0]["params"], gradients.values(), strict=True):
            one.grad = g
        momentum.step()
        weights = {
            k: p.detach() for k, p in zip(weights, momentum.param_groups[0]["params"], strict=True)
        }
        if on("func_sleep"):
            with cost:
                time.sleep(0.004)  # at: func_sleep
    cost.print(steps)


if on("augment", "clean_augment", "detached", "clean_detached"):
    pairs(STEPS or 600)
elif on("func_sleep", "clean_func_sleep"):
    functional(STEPS or 400)
else:
    tabular(STEPS or 500)
