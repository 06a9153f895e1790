"""Evaluates for longer after its first step than a trace has patience."""

import time

import torch
from torch import nn

import gputop_tracer.script.steps as patience

patience.SECOND_STEP_S = 0.2
model = nn.Linear(64, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.randn(8, 64, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        for _ in range(1000):
            model(torch.randn(8, 64, device="cuda"))
            time.sleep(0.05)
