"""bfloat16 autocast on a CPU with a progress line per step and metrics appended to a CSV file."""

import csv
import sys
import time

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(
    nn.Linear(256, 512),
    nn.GELU(),
    nn.LayerNorm(512),
    nn.Linear(512, 512),
    nn.GELU(),
    nn.Linear(512, 20),
)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
teacher = torch.randn(256, 20)
total, begin = 500, time.time()
with open("metrics.csv", "w", newline="") as file:
    log = csv.writer(file)
    log.writerow(["step", "loss", "accuracy", "seconds"])
    for step in range(1, total + 1):
        x = torch.randn(64, 256)
        y = (x @ teacher).argmax(1)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(x)
            loss = nn.functional.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        accuracy = (logits.argmax(1) == y).float().mean().item()
        log.writerow([step, f"{loss.item():.5f}", accuracy, round(time.time() - begin, 3)])
        file.flush()
        filled = "#" * (30 * step // total)
        sys.stderr.write(f"\r{filled:<30} {step}/{total} loss {loss.item():.4f}")
        sys.stderr.flush()
sys.stderr.write("\n")
