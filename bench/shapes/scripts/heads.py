"""A trunk with three heads: a backward through the trunk for each, gradients clipped before they
are unscaled, a column of raw time stamps.
"""

import eager  # noqa: F401
import torch
from shape import STEPS, on
from torch import nn

steps = STEPS or 400
torch.set_num_threads(1)
torch.manual_seed(93)
scaled = on("clipped_scaled", "clean_clipped_scaled")


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 256)
        )
        self.heads = nn.ModuleList(nn.Linear(256, 4) for _ in range(3))

    def forward(self, x):
        z = self.trunk(x)
        return [head(z) for head in self.heads]


model = Heads()
optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
scaler = torch.amp.GradScaler("cpu", enabled=scaled)
for step in range(steps):
    x = torch.randn(64, 64)
    if on("raw_timestamp", "clean_raw_timestamp"):
        seconds = 1.7e9 + 60 * torch.arange(64.0)
        x[:, 63] = seconds if on("raw_timestamp") else (seconds - 1.7e9) / 4e3  # at: raw_timestamp
    outs = model(x)  # at: raw_timestamp
    losses = [
        nn.functional.cross_entropy(out, x[:, 4 * i : 4 * i + 4].argmax(1))
        for i, out in enumerate(outs)
    ]
    optimizer.zero_grad()
    if on("backward_per_head"):
        for loss in losses:
            loss.backward(retain_graph=True)  # at: backward_per_head
        optimizer.step()
    elif scaled:
        scaler.scale(sum(losses)).backward()
        if on("clean_clipped_scaled"):
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # at: clipped_scaled
        scaler.step(optimizer)
        scaler.update()
    else:
        sum(losses).backward()
        optimizer.step()
    if step % 50 == 0:
        print(step, [round(loss.item(), 4) for loss in losses], flush=True)
