"""A small U-Net that learns to take noise away; validation metrics in plain Python."""

import json
import os

import eager  # noqa: F401
import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F

torch.set_num_threads(8 if on("threads") else 1)
torch.manual_seed(6)
steps, cost = STEPS or 300, Cost()


class UNet(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(2, width, 3, 2, 1), nn.Conv2d(width, 2 * width, 3, 2, 1)
        self.up2, self.up1 = (
            nn.ConvTranspose2d(2 * width, width, 4, 2, 1),
            nn.ConvTranspose2d(2 * width, 1, 4, 2, 1),
        )

    def forward(self, x, t):
        x = torch.cat([x, t[:, None, None, None].expand_as(x)], 1)
        a = F.silu(self.down1(x))
        b = F.silu(self.down2(a))
        return self.up1(torch.cat([F.silu(self.up2(b)), a], 1))


def area_under_curve(scores, labels):
    """As a metrics library would, but in Python."""
    pairs = wins = 0
    for k, (score, label) in enumerate(zip(scores, labels, strict=True)):  # at: auc
        for other, kind in zip(scores[k:], labels[k:], strict=True):  # at: auc
            if label != kind:  # at: auc
                pairs += 1  # at: auc
                wins += (score > other) == (label > kind)  # at: auc
    return wins / max(1, pairs)  # at: auc


def spill(step, noise):
    with open(f"noise{step % 4}.json", "w") as file:
        json.dump(noise.flatten().tolist(), file)  # at: dump
        file.flush()  # at: dump
        os.fsync(file.fileno())  # at: dump


net = UNet()
ema = UNet()
ema.load_state_dict(net.state_dict())
optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
images = torch.randn(64, 1, 32, 32)
for step in range(steps):
    clean = images[torch.randint(0, 64, (16,))]
    t, noise = torch.rand(16), torch.randn(16, 1, 32, 32)
    guess = net(clean + t[:, None, None, None] * noise, t)
    loss = F.mse_loss(guess, noise)
    if on("nan_batch") and step == 90:
        loss = F.mse_loss(guess * float("nan"), noise)
    if on("clean_nan_batch") and step == 90:
        continue
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        torch._foreach_lerp_(list(ema.parameters()), list(net.parameters()), 0.01)
    if on("auc"):
        with cost:
            flat = guess.detach().flatten()[:256].tolist()
            area_under_curve(flat, [x > 0 for x in flat])  # at: auc
    elif on("clean_auc"):
        ((guess > 0) == (noise > 0)).float().mean().item()
    if on("dump") or (on("clean_dump") and step == 100):
        with cost:
            spill(step, noise)  # at: dump
    if on("sample_each"):
        with cost:
            net.eval()
            x = torch.randn(16, 1, 32, 32)
            with torch.no_grad():
                for k in range(6):
                    x = x - 0.1 * net(x, torch.full((16,), 1 - k / 6))  # at: sample_each
            net.train()
    if on("clean_sample_each") and step == 75:
        net.eval()
        with torch.no_grad():
            for k in range(6):
                net(clean, torch.full((16,), 1 - k / 6))
        net.train()
cost.print(steps)
