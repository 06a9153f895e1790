"""A sweep of the learning rate over six decades until the loss blows up, weights put back, then a
training at a tenth of the best rate.
"""

import copy

import torch
from torch import nn

torch.manual_seed(0)
teacher = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 1)).requires_grad_(False)
model = nn.Sequential(
    nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1)
)
fresh = copy.deepcopy(model.state_dict())


def batch():
    x = torch.randn(128, 64)
    return x, teacher(x)


optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9)
rates, losses, smooth = [], [], 0.0
for step in range(150):
    rate = 1e-6 * 10 ** (7 * step / 150)
    optimizer.param_groups[0]["lr"] = rate
    x, y = batch()
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    smooth = 0.9 * smooth + 0.1 * loss.item()
    corrected = smooth / (1 - 0.9 ** (step + 1))
    if losses and corrected > 4 * min(losses):
        print("diverged at", rate)
        break
    rates.append(rate)
    losses.append(corrected)
best = rates[losses.index(min(losses))] / 10
print("learning rate", best)
model.load_state_dict(fresh)
optimizer = torch.optim.SGD(model.parameters(), lr=best, momentum=0.9)
scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1_000, 1_500], 0.3)
for step in range(2_000):
    x, y = batch()
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    if step % 200 == 0:
        print(step, loss.item())
