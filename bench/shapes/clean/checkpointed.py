"""Activation checkpointing in every block of a deep MLP, as for a model that would not fit."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)


class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 256), nn.Linear(256, 8)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(256), nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256))
            for _ in range(6)
        )

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=False)
        return self.last(x)


model = Deep()
optimizer = torch.optim.AdamW(model.parameters(), 5e-4)
for step in range(300):
    x = torch.randn(64, 64)
    loss = nn.functional.cross_entropy(model(x), x[:, :8].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 30 == 0:
        print(step, loss.item(), flush=True)
