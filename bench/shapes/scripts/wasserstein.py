"""A WGAN with five critic updates for each of the generator and a gradient penalty: averages for a
progress line that keep what they are averages of.
"""

import eager  # noqa: F401
import torch
from shape import STEPS, on
from torch import nn

steps = STEPS or 260
torch.set_num_threads(1)
torch.manual_seed(84)
maker = nn.Sequential(nn.Linear(16, 96), nn.ReLU(), nn.Linear(96, 32))
critic = nn.Sequential(nn.Linear(32, 96), nn.SiLU(), nn.Linear(96, 1))
makes = torch.optim.Adam(maker.parameters(), 1e-4, betas=(0.0, 0.9))
judges = torch.optim.Adam(critic.parameters(), 1e-4, betas=(0.0, 0.9))
shown = {"critic": 0.0, "maker": 0.0}


def smooth(name, value):
    """Take a loss into the average that the progress line shows."""
    if not on("smooth_keeps_graph"):
        value = value.item()
    shown[name] = 0.98 * shown[name] + 0.02 * value  # at: smooth_keeps_graph


def penalty(real, fake):
    mixed = torch.lerp(real, fake, torch.rand(len(real), 1)).requires_grad_()
    (slope,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
    return (slope.norm(dim=1) - 1).pow(2).mean()


for _ in range(steps):
    for _ in range(5):
        real = torch.randn(64, 32).cumsum(1) / 4
        fake = maker(torch.randn(64, 16)).detach()
        loss = critic(fake).mean() - critic(real).mean() + 10 * penalty(real, fake)
        judges.zero_grad()
        loss.backward()
        judges.step()
        smooth("critic", loss)
    loss = -critic(maker(torch.randn(64, 16))).mean()
    makes.zero_grad()
    loss.backward()
    makes.step()
    smooth("maker", loss)
print({name: float(value) for name, value in shown.items()})
