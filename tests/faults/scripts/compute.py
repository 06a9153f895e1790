"""A small training whose computing has one fault of choice (environment variable FAULT) or none.

The last line printed is what the fault cost: {"truth_ms_per_step": ..., "steps": ...}; without a
cost, nothing.
"""

import json
import os
import statistics
import time
import warnings

import eager  # noqa: F401
import torch
from torch import nn

warnings.simplefilter("ignore")
FAULT = os.environ.get("FAULT", "none")
STEPS = int(os.environ.get("STEPS", "200"))
CHANGE = STEPS // 2
WIDTH = 192
torch.set_num_threads(1)
torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.kept = []

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        if FAULT == "slower" and len(self.kept) >= CHANGE:
            time.sleep(0.012)
        self.kept.append(x.shape[0])
        return x


def rows(step):
    """Samples of a batch."""
    if FAULT == "shapes":
        return 32 + step % 60
    if FAULT == "clean_buckets":
        return (32, 64, 96)[step % 3]
    if FAULT == "clean_larger_batch" and step >= CHANGE:
        return 256
    return 64


def gradients(model, inputs, loss):
    """Of the loss, and of the penalty on its own gradient where that is the fault."""
    if FAULT != "double_backward":
        loss.backward()
        return
    (slope,) = torch.autograd.grad(loss, inputs, create_graph=True)
    penalty = ((slope.norm(2, dim=1) - 1) ** 2).mean()
    (loss + penalty).backward(create_graph=True)
    inputs.grad = None  # it and the inputs would keep each other, and with them the graph


def main():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
    half = FAULT in ("fp16_scaler", "clean_bf16")
    dtype = torch.float16 if FAULT == "fp16_scaler" else torch.bfloat16
    scaler = torch.amp.GradScaler("cpu", enabled=FAULT == "fp16_scaler", init_scale=256.0)
    walls = []
    for step in range(STEPS):
        begin = time.perf_counter()
        inputs = torch.randn(rows(step), WIDTH, requires_grad=FAULT == "double_backward")
        with torch.autocast("cpu", dtype, enabled=half):
            loss = nn.functional.mse_loss(model(inputs), inputs.detach())
        if half:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            gradients(model, inputs, loss)
            optimizer.step()
        optimizer.zero_grad()
        walls.append((time.perf_counter() - begin) * 1e3)
    if FAULT == "slower":
        truth = statistics.fmean(walls[CHANGE:]) - statistics.fmean(walls[20:CHANGE])
        print(json.dumps({"truth_ms_per_step": truth, "steps": STEPS}))


if __name__ == "__main__":
    main()
