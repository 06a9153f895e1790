"""Momentum contrast: a key encoder that follows, and a queue of 4,096 keys in a buffer."""

import copy

import torch
from torch import nn
from torch.nn import functional as F


class MoCo(nn.Module):
    def __init__(self, width=64, length=4096):
        super().__init__()
        self.query = nn.Sequential(
            nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, width),
        )  # fmt: skip
        self.key = copy.deepcopy(self.query).requires_grad_(False)
        self.register_buffer("queue", F.normalize(torch.randn(width, length), dim=0))
        self.register_buffer("pointer", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def follow(self):
        for q, k in zip(self.query.parameters(), self.key.parameters(), strict=False):
            k.data = k.data * 0.999 + q.data * 0.001

    @torch.no_grad()
    def enqueue(self, keys):
        at = int(self.pointer)
        self.queue[:, at : at + len(keys)] = keys.T
        self.pointer[0] = (at + len(keys)) % self.queue.shape[1]

    def forward(self, a, b):
        q = F.normalize(self.query(a), dim=1)
        with torch.no_grad():
            self.follow()
            k = F.normalize(self.key(b), dim=1)
        positive = (q * k).sum(1, keepdim=True)
        logits = torch.cat([positive, q @ self.queue.clone().detach()], 1) / 0.2
        self.enqueue(k)
        return logits, torch.zeros(len(logits), dtype=torch.long)


torch.manual_seed(0)
model = MoCo()
optimizer = torch.optim.SGD(model.query.parameters(), 0.03, momentum=0.9, weight_decay=1e-4)
for step in range(400):
    x = torch.randn(64, 3, 32, 32)
    a, b = x + 0.2 * torch.randn_like(x), (x + 0.2 * torch.randn_like(x)).flip(3)
    logits, target = model(a, b)
    loss = F.cross_entropy(logits, target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 40 == 0:
        hits = (logits.argmax(1) == 0).float().mean()
        print(f"{step} loss {loss.item():.3f} top1 {hits.item():.2f}")
