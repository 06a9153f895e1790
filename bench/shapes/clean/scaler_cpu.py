"""float16 autocast with a GradScaler on a CPU, unscaled before clipping, as written for a GPU."""

import torch
from torch import nn

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
kind = torch.float16 if device == "cuda" else torch.bfloat16
model = nn.Sequential(
    nn.Linear(128, 384), nn.ReLU(), nn.Linear(384, 384), nn.ReLU(), nn.Linear(384, 10)
).to(device)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
scaler = torch.amp.GradScaler(device, enabled=True)
for step in range(600):
    x = torch.randn(64, 128, device=device)
    y = x[:, :10].argmax(1)
    with torch.autocast(device, kind):
        loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 2.0)
    scaler.step(optimizer)
    scaler.update()
    if step % 100 == 0:
        print(step, loss.item(), scaler.get_scale())
