"""A random search of nine trials in one process, bad ones cut short; rates from 1e-5 to 1."""

import random

import torch
from torch import nn

random.seed(4)
torch.manual_seed(4)
x = torch.randn(3_000, 50)
y = torch.tanh(x @ torch.randn(50, 20)) @ torch.randn(20, 1)


def objective(trial):
    rate = 10 ** random.uniform(-5, 0)
    width = random.choice([64, 128, 256])
    size = random.choice([32, 64, 128])
    model = nn.Sequential(nn.Linear(50, width), nn.ReLU(), nn.Linear(width, 1))
    kind = random.choice([torch.optim.SGD, torch.optim.Adam])
    optimizer = kind(model.parameters(), lr=rate)
    best = float("inf")
    for _ in range(10):
        for index in torch.randperm(2_400).split(size):
            loss = nn.functional.mse_loss(model(x[index]), y[index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            valid = nn.functional.mse_loss(model(x[2_400:]), y[2_400:]).item()
        if not valid < 3 * best:
            break
        best = min(best, valid)
    print(f"trial {trial}: {kind.__name__} lr {rate:.2e} width {width} -> {best:.4f}", flush=True)
    return best


print(min(objective(trial) for trial in range(9)))
