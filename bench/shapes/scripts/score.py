"""Diffusion of points with an average of the weights and samples for the log; batches from a
generator, the step as a closure.
"""

import copy

import eager  # noqa: F401
import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F

torch.set_num_threads(1)
torch.manual_seed(404)
cost = Cost()
steps = STEPS or 700


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Embedding(100, 128)
        self.first = nn.Linear(2, 128)
        self.body = nn.ModuleList(nn.Linear(128, 128) for _ in range(6))
        self.last = nn.Linear(128, 2)

    def forward(self, x, t):
        h = self.first(x) + self.time(t)
        for layer in self.body:
            h = h + F.silu(layer(h))
        if on("half_overflows") and self.training and step > 200:
            h = h * 3000.0
        return self.last(h)


def moons():
    while True:
        angle = torch.rand(128) * 3.1416
        yield torch.stack([angle.cos(), angle.sin()], 1) + 0.05 * torch.randn(128, 2)


alphas = torch.linspace(0.9999, 0.94, 100).cumprod(0)


def sampled(model, count=64):
    x = torch.randn(count, 2)
    for t in reversed(range(100)):  # at: samples_each
        eps = model(x, torch.full((count,), t))  # at: samples_each
        x = x - 0.02 * eps  # at: samples_each
    return x


def averaged(average, model):
    fresh = copy.deepcopy(model.state_dict())  # at: ema_rebuilt
    return {  # at: ema_rebuilt
        name: torch.tensor(  # at: ema_rebuilt
            (0.999 * average[name].numpy() + 0.001 * one.numpy()).tolist()  # at: ema_rebuilt
        )  # at: ema_rebuilt
        for name, one in fresh.items()  # at: ema_rebuilt
        if "body" in name or "last" in name  # at: ema_rebuilt
    }  # fmt: skip


def make_step(model, optimizer, scheduler):
    def step_on(x):
        t = torch.randint(0, 100, (len(x),))
        noise = torch.randn_like(x)
        noisy = alphas[t, None].sqrt() * x + (1 - alphas[t, None]).sqrt() * noise
        with torch.autocast("cpu", torch.float16, enabled=on("half_overflows")):
            loss = F.mse_loss(model(noisy, t).float(), noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        return loss

    return step_on


model = Denoiser()
average = copy.deepcopy(model.state_dict())
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
warm = (lambda it: (it // 10_000) / 100) if on("warmup_integer") else (lambda it: min(1, it / 100))
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, warm)
train_step = make_step(model, optimizer, scheduler)
for step, points in enumerate(moons()):
    if step == steps:
        break
    train_step(points)
    if on("ema_rebuilt"):
        with cost, torch.no_grad():
            average = averaged(average, model)  # at: ema_rebuilt
    elif on("clean_ema_rebuilt"):
        with torch.no_grad():
            torch._foreach_lerp_(list(average.values()), list(model.state_dict().values()), 0.001)
    if on("samples_each") and step % 10 == 0:
        with torch.no_grad(), cost:
            sampled(model)  # at: samples_each
    elif on("clean_samples_each") and step % 350 == 349:
        with torch.no_grad():
            sampled(model)
cost.print(steps)
