"""Two tasks with a shared trunk and a head each; batches of the tasks take turns."""

import torch
from torch import nn

torch.manual_seed(0)
trunk = nn.Sequential(nn.Linear(80, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU())
heads = nn.ModuleDict({"classes": nn.Linear(256, 6), "value": nn.Linear(256, 1)})
optimizer = torch.optim.Adam([*trunk.parameters(), *heads.parameters()], 1e-3)
weight = {"classes": 1.0, "value": 0.5}
last = {}
for step in range(1_200):
    task = "classes" if step % 2 == 0 else "value"
    x = torch.randn(48 if task == "classes" else 96, 80)
    out = heads[task](trunk(x))
    if task == "classes":
        loss = nn.functional.cross_entropy(out, x[:, :6].argmax(1))
    else:
        loss = nn.functional.mse_loss(out[:, 0], x[:, :10].sum(1))
    optimizer.zero_grad()
    (weight[task] * loss).backward()
    optimizer.step()
    last[task] = loss.item()
    if step % 100 == 99:
        print(step, last, flush=True)
