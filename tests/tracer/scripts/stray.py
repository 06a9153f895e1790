"""Writes where it likes, starts programs, and uses what only a GPU has."""

import os
import subprocess
import sys
from pathlib import Path

import torch
from torch import nn

elsewhere = Path(sys.argv[1])
os.makedirs(elsewhere / "new" / "folder", exist_ok=True)
subprocess.run(["touch", str(elsewhere / "touched")], check=False)
side = torch.cuda.Stream()
model = nn.DataParallel(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 4)).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(10):
    with torch.cuda.stream(side):
        batch = torch.randn(8, 64).to("cuda", non_blocking=True)
    batch.record_stream(torch.cuda.current_stream())
    model(batch).square().mean().backward()
    optimizer.step()
    torch.save({"model": model.state_dict()}, elsewhere / "checkpoint.pt")
    with open(elsewhere / "new" / "log.txt", "a") as log:
        print(step, file=log)
