"""First-order MAML on sine waves with torch.func: grad, functional_call, vmap over tasks."""

import math

import torch
from torch import nn
from torch.func import functional_call, grad, grad_and_value, vmap

torch.set_num_threads(1)
torch.manual_seed(4)
TASKS, SHOTS, INNER, RATE = 16, 20, 3, 0.02

model = nn.Sequential(nn.Linear(1, 96), nn.SiLU(), nn.Linear(96, 96), nn.SiLU(), nn.Linear(96, 1))
params = {name: value.detach().clone() for name, value in model.named_parameters()}


def loss_of(weights, x, y):
    return nn.functional.mse_loss(functional_call(model, weights, (x,)), y)


def tasks(count):
    height = 0.5 + 2 * torch.rand(count, 1, 1)
    phase = math.pi * torch.rand(count, 1, 1)
    x = 10 * torch.rand(count, 2 * SHOTS, 1) - 5
    y = height * torch.sin(x + phase)
    return x[:, :SHOTS] / 5, y[:, :SHOTS], x[:, SHOTS:] / 5, y[:, SHOTS:]


def adapt(weights, x, y):
    for _ in range(INNER):
        slopes = grad(loss_of)(weights, x, y)
        weights = {name: value - RATE * slopes[name] for name, value in weights.items()}
    return weights


def meta(weights, near_x, near_y, far_x, far_y):
    adapted = adapt(weights, near_x, near_y)
    return grad_and_value(loss_of)(adapted, far_x, far_y)


first = {name: torch.zeros_like(value) for name, value in params.items()}
second = {name: torch.zeros_like(value) for name, value in params.items()}
running = 0.0
for step in range(1, 901):
    slopes, losses = vmap(meta, in_dims=(None, 0, 0, 0, 0))(params, *tasks(TASKS))
    for name, value in params.items():
        slope = slopes[name].mean(0)
        first[name].lerp_(slope, 0.1)
        second[name].lerp_(slope.square(), 0.001)
        ratio = first[name] / (1 - 0.9**step)
        spread = (second[name] / (1 - 0.999**step)).sqrt_().add_(1e-8)
        params[name] = value.addcdiv(ratio, spread, value=-1e-3)
    running = losses.mean().item() if step == 1 else 0.95 * running + 0.05 * losses.mean().item()
    if step % 100 == 0:
        print(f"meta step {step} loss after adapting {running:.4f}")
near_x, near_y, far_x, far_y = tasks(200)
after = vmap(lambda x, y: adapt(params, x, y))(near_x, near_y)
print("new tasks:", vmap(loss_of)(after, far_x, far_y).mean().item())
model.load_state_dict(params)
torch.save(model.state_dict(), "meta.pt")
