"""An autoencoder over codes with autograd functions of its own: one that lets no gradient through,
one whose backward goes row by row, and a schedule that swings.
"""

import eager  # noqa: F401
import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.optim import lr_scheduler

steps, cost = STEPS or 500, Cost()
torch.set_num_threads(1)
torch.manual_seed(82)


class Rounded(torch.autograd.Function):
    """Rounds to sixteenths; backward passes the gradient through."""

    @staticmethod
    def forward(ctx, x):
        return (x * 16).round() / 16

    @staticmethod
    def backward(ctx, gradient):
        if on("estimator_cuts"):
            return torch.zeros_like(gradient)  # at: estimator_cuts
        return gradient


class Centred(torch.autograd.Function):
    """Rows without their mean."""

    @staticmethod
    def forward(ctx, x):
        return x - x.mean(1, keepdim=True)

    @staticmethod
    def backward(ctx, gradient):
        if not on("backward_by_rows"):
            return gradient - gradient.mean(1, keepdim=True)
        with cost:
            rows = []
            for row in gradient:
                values = row.tolist()  # at: backward_by_rows
                mean = sum(values) / len(values)  # at: backward_by_rows
                rows.append([value - mean for value in values])  # at: backward_by_rows
            return torch.tensor(rows)  # at: backward_by_rows


encoder = nn.Sequential(nn.Linear(128, 192), nn.ReLU(), nn.Linear(192, 32))
decoder = nn.Sequential(nn.Linear(32, 192), nn.ReLU(), nn.Linear(192, 128))
optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], 1e-3)
if on("cosine_swings"):
    scheduler = lr_scheduler.CosineAnnealingLR(optimizer, T_max=25)  # at: cosine_swings
elif on("clean_cosine_swings"):
    scheduler = lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=25)
else:
    scheduler = lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
basis = torch.randn(12, 128) / 3
for _ in range(steps):
    x = torch.randn(96, 12) @ basis + torch.randn(96, 128) / 10
    code = Rounded.apply(encoder(Centred.apply(x.requires_grad_())))
    loss = (decoder(code) - x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()  # at: cosine_swings
cost.print(steps)
