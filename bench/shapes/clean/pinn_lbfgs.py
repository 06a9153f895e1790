"""A physics-informed network for the heat equation: Adam first, then L-BFGS with a closure."""

import math
from itertools import pairwise

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(3)
DIFFUSION = 0.1


class Field(nn.Module):
    def __init__(self, width=64, depth=3):
        super().__init__()
        sizes = [2] + [width] * depth
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.out = nn.Linear(width, 1)

    def forward(self, x, t):
        h = torch.stack([x, t], 1)
        for layer in self.hidden:
            h = torch.tanh(layer(h))
        return self.out(h)[:, 0]


def points(count):
    return torch.rand(count, requires_grad=True), torch.rand(count, requires_grad=True)


def physics(model, x, t):
    u = model(x, t)
    u_x, u_t = torch.autograd.grad(u.sum(), (x, t), create_graph=True)
    (u_xx,) = torch.autograd.grad(u_x.sum(), x, create_graph=True)
    return (u_t - DIFFUSION * u_xx).square().mean()


def edges(model, count=128):
    x, t = torch.linspace(0, 1, count), torch.linspace(0, 1, count)
    start = (model(x, torch.zeros(count)) - torch.sin(math.pi * x)).square().mean()
    sides = model(torch.zeros(count), t).square() + model(torch.ones(count), t).square()
    return start + sides.mean()


model = Field()
adam = torch.optim.Adam(model.parameters(), 1e-3)
for step in range(500):
    if step % 50 == 0:
        x, t = points(768)
    adam.zero_grad()
    loss = physics(model, x, t) + 10 * edges(model)
    loss.backward()
    adam.step()
    if step % 100 == 0:
        print(f"adam {step}: {loss.item():.3e}")

x, t = points(768)
lbfgs = torch.optim.LBFGS(
    model.parameters(), lr=1.0, max_iter=4, history_size=20, line_search_fn="strong_wolfe"
)


def closure():
    lbfgs.zero_grad()
    loss = physics(model, x, t) + 10 * edges(model)
    loss.backward()
    return loss


for step in range(100):
    loss = lbfgs.step(closure)
    if step % 20 == 0:
        print(f"lbfgs {step}: {loss.item():.3e}")
with torch.no_grad():
    x, t = torch.rand(2_000), torch.rand(2_000)
    exact = torch.exp(-DIFFUSION * math.pi**2 * t) * torch.sin(math.pi * x)
    print("largest error", (model(x, t) - exact).abs().max().item())
