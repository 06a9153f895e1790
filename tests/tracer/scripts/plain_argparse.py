"""A plain loop behind argparse and a main guard; the loss is printed, compared and averaged."""

import argparse
import math
import time

import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)
        )
        self.head = nn.Linear(32 * 16 * 16, width)
        self.out = nn.Linear(width, 10)

    def forward(self, x):
        return self.out(F.relu(self.head(self.features(x).flatten(1))))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=8)
    args = parser.parse_args()
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    assert device.type == "cuda"
    model = Net(args.width).to(device)
    print(
        f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters on "
        f"{torch.cuda.get_device_name(0)}"
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    best, total = float("inf"), 0.0
    for step in range(5):
        began = time.time()
        x = torch.randn(args.batch_size, 3, 32, 32).to(device, non_blocking=True)
        y = torch.randint(0, 10, (args.batch_size,), device=device)
        logits = model(x)
        loss = F.cross_entropy(logits, y)
        if not math.isfinite(loss.item()) or torch.isnan(loss):
            raise RuntimeError("diverged")
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        total += float(loss)
        if loss < best:
            best = loss.item()
        accuracy = (logits.argmax(1) == y).float().mean().item()
        print(
            f"{step}: {loss:.4f} {accuracy:.2%} {total / (step + 1):.3f} "
            f"{time.time() - began:.2f} s"
        )


if __name__ == "__main__":
    main()
