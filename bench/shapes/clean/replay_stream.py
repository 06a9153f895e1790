"""Online learning: a drifting stream comes in small portions, each step mixes the newest with a
sample of a replay buffer of fixed size.
"""

import math

import torch
from torch import nn


class Reservoir:
    """Buffer of fixed size in which each sample of the stream stays with the same chance."""

    def __init__(self, size, features):
        self.x, self.y = torch.zeros(size, features), torch.zeros(size)
        self.size, self.seen = size, 0

    def add(self, x, y):
        if self.seen + len(x) <= self.size:
            places = torch.arange(self.seen, self.seen + len(x))
        else:
            places = (torch.rand(len(x)) * (self.seen + len(x))).long()
        kept = places < self.size
        self.x[places[kept]], self.y[places[kept]] = x[kept], y[kept]
        self.seen += len(x)

    def sample(self, count):
        rows = torch.randint(min(self.seen, self.size), (count,))
        return self.x[rows], self.y[rows]


class Stream:
    def __init__(self, features=24):
        self.first, self.second = torch.randn(2, features) / math.sqrt(features)
        self.features = features

    def __iter__(self):
        time = 0
        while True:
            x = torch.randn(48, self.features)
            angle = 0.3 * math.sin(time / 300)
            weight = math.cos(angle) * self.first + math.sin(angle) * self.second
            yield x, torch.tanh(2 * x @ weight) + 0.1 * torch.randn(48)
            time += 1


def main():
    torch.set_num_threads(1)
    torch.manual_seed(13)
    model = nn.Sequential(
        nn.Linear(24, 384), nn.ELU(), nn.Linear(384, 384), nn.ELU(), nn.Linear(384, 1)
    )
    optimizer = torch.optim.RMSprop(model.parameters(), lr=3e-4)
    buffer = Reservoir(8_000, 24)
    average = None
    for step, (x, y) in enumerate(Stream()):
        if step == 900:
            break
        with torch.no_grad():
            before = nn.functional.mse_loss(model(x)[:, 0], y).item()
        average = before if average is None else 0.98 * average + 0.02 * before
        buffer.add(x, y)
        old_x, old_y = buffer.sample(208)
        guess = model(torch.cat([x, old_x]))[:, 0]
        loss = nn.functional.smooth_l1_loss(guess, torch.cat([y, old_y]), beta=0.5)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"{step}: error before learning {average:.4f} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
