"""A small training in one process with one fault of its numbers (environment variable FAULT), or
none.

Nothing here costs time, so the last line only says how many steps there were.
"""

import json
import os
import time

import eager  # noqa: F401
import torch
from torch import nn

FAULT = os.environ.get("FAULT", "none")
STEPS = int(os.environ.get("STEPS", "240"))
WIDTH, BATCH = 64, 32
PAUSE_S = {"grad_spike": 0.021, "clipped": 0.002}.get(FAULT, 0.0)
"""Slow enough that no steps are folded together where 100 values must stand before the spike, and
that a norm is read often enough where clipping is judged.
"""

torch.set_num_threads(1)
torch.manual_seed(0)


class Net(nn.Module):
    """With a head that the loss needs, and one that it does not."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(WIDTH, 128), nn.GELU(), nn.Linear(128, 128), nn.GELU())
        self.head = nn.Linear(128, WIDTH)
        self.drop = nn.Dropout(0.1 if FAULT.endswith("eval_first") else 0.0)
        self.pooler = nn.Linear(128, 128) if FAULT == "unused" else nn.Identity()

    def forward(self, x):
        time.sleep(PAUSE_S)
        hidden = self.body(x)
        if FAULT in ("reseeded", "clean_reseeded"):
            hidden = nn.functional.dropout(hidden, 0.1, self.training)
        return self.head(self.drop(hidden))


def batches():
    teacher = torch.randn(WIDTH, WIDTH) / WIDTH**0.5
    inputs = torch.randn(4096, WIDTH)
    targets = torch.tanh(inputs @ teacher) + 0.3 * torch.randn(4096, WIDTH)
    data = list(zip(inputs.split(BATCH), targets.split(BATCH)))
    while True:
        yield from torch.utils.data.DataLoader(data, batch_size=None, shuffle=True)


def schedule_of(optimizer):
    if FAULT == "lr_zero":
        return torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=STEPS // 2)
    if FAULT in ("clean_schedule", "scheduler_first"):
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    if FAULT in ("cycle_by_epoch", "clean_cycle"):
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=STEPS + 1)
    return None


def is_due(step):
    """Whether the schedule goes on after a step."""
    return FAULT != "cycle_by_epoch" or step % 60 == 59


def looked_at(model, inputs):
    """The outputs before the training."""
    if FAULT == "eval_first":
        model.eval()
    with torch.no_grad():
        return model(inputs)


def main():
    torch.backends.cudnn.benchmark = FAULT == "benchmark"
    model = Net().train()
    lr = {"bf16": 1e-6, "clean_bf16": 1e-3}.get(FAULT, 1e-3)
    if FAULT in ("bf16", "clean_bf16"):
        model = model.to(torch.bfloat16)
    if FAULT == "misspelt":
        for parameter in model.body[0].parameters():
            parameter.require_grad = False  # misspelt
    if FAULT == "clean_frozen":
        model.body[0].requires_grad_(False)
    if FAULT.endswith("eval_first"):
        looked_at(model, torch.randn(BATCH, WIDTH))
    kind = torch.optim.SGD if FAULT == "clipped" else torch.optim.AdamW
    optimizer = kind(model.parameters(), lr=lr)
    scaler = torch.amp.GradScaler(
        "cpu", enabled=FAULT in ("skips", "clean_schedule"), init_scale=2.0**10
    )
    schedule = schedule_of(optimizer)
    max_norm = {"clipped": 1e-3, "clean_schedule": 5.0, "grad_spike": 5.0}.get(FAULT)
    source = batches()
    for step in range(STEPS):
        inputs, targets = (part.to(next(model.parameters()).dtype) for part in next(source))
        if FAULT == "diverge":  # data that drifts away faster than the model can follow
            targets = targets + torch.randn_like(targets) * max(0.0, step - STEPS / 4) / STEPS
        if FAULT in ("reseeded", "clean_reseeded"):
            torch.manual_seed(7 if FAULT == "reseeded" else step)
        loss = nn.functional.mse_loss(model(inputs), targets)
        if FAULT != "no_zero_grad":
            optimizer.zero_grad()
        scaler.scale(loss).backward()
        if FAULT == "skips" and step % 8 == 0:
            model.head.weight.grad[0, 0] = float("inf")
        if FAULT == "grad_spike" and step == 150:
            model.head.weight.grad.mul_(2000)
        if max_norm:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        if FAULT == "scheduler_first" and schedule:
            schedule.step()
        scaler.step(optimizer)
        scaler.update()
        if FAULT != "scheduler_first" and schedule and is_due(step):
            schedule.step()
    print(json.dumps({"truth_ms_per_step": 0.0, "steps": STEPS}))


if __name__ == "__main__":
    main()
