"""Forecasts of series with a convolution and a recurrent layer, batches from a generator: windows
cut by hand, a schedule for epochs that counts batches, gradients cleared once an epoch, losses
kept, a collector that is called, figures drawn.
"""

import gc
import math

import eager  # noqa: F401
import torch
from shape import STEPS, Cost, on
from torch import nn

steps = STEPS or 400
torch.set_num_threads(1)
torch.manual_seed(102)
cost = Cost()
t = torch.arange(40_000) / 20
series = torch.stack([(t * f).sin() + 0.1 * torch.randn(len(t)) for f in (0.7, 1.1, 1.9)], 1)


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Conv1d(3, 32, 5, padding=2)
        self.body = nn.GRU(32, 64, batch_first=True)
        self.head = nn.Linear(64, 3)

    def forward(self, x):
        z = torch.relu(self.mix(x.transpose(1, 2))).transpose(1, 2)
        return self.head(self.body(z)[0][:, -1])


def window(start, length=24):
    if on("windows_by_hand"):
        with cost:
            rows = [
                [float(v) for v in series[start + i]] for i in range(length + 1)
            ]  # at: windows_by_hand
            return torch.tensor(rows)
    return series[start : start + length + 1]


def batches(size=16):
    """Windows at random starts."""
    while True:
        starts = torch.randint(0, len(series) - 32, (size,)).tolist()
        cut = torch.stack([window(start) for start in starts])  # at: windows_by_hand
        yield cut[:, :-1], cut[:, -1]


def chart(values):
    """A line of text a value."""
    low, high = min(values), max(values) + 1e-9
    return "\n".join("#" * int(60 * (v - low) / (high - low)) for v in values)


model = Forecaster()
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
schedule = None
if on("step_each_batch", "clean_step_each_batch"):
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 8, gamma=0.5)  # at: step_each_batch
history, drawn = [], []
EPOCH = 50
for step, (x, y) in enumerate(batches()):  # at: windows_by_hand
    if step == steps:
        break
    if on("cleared_each_epoch"):
        if step % EPOCH == 0:
            optimizer.zero_grad()  # at: cleared_each_epoch
    elif on("clean_cleared_each_epoch"):
        if step % 4 == 0:
            optimizer.zero_grad()
    else:
        optimizer.zero_grad()
    out = model(x)
    loss = (out - y).pow(2).mean()
    loss.backward()  # at: cleared_each_epoch
    if not on("clean_cleared_each_epoch") or step % 4 == 3:
        optimizer.step()  # at: cleared_each_epoch
    if schedule and (on("step_each_batch") or step % EPOCH == EPOCH - 1):
        schedule.step()  # at: step_each_batch
    if on("outputs_kept_too"):
        history.append(
            (out, model.body.weight_hh_l0.clone(), x.repeat(20, 1, 1))
        )  # at: outputs_kept_too
    elif on("clean_outputs_kept_too"):
        history.append((out.detach().mean(), x.mean()))
    if on("collected_each_step"):
        gc.collect()  # at: collected_each_step
    elif on("clean_collected_each_step") and step % 200 == 0:
        gc.collect()
    if on("drawn_each_step"):
        with cost:
            drawn.append(loss.item())
            text = chart([math.log(v) for v in (drawn * 40)[-3000:]])  # at: drawn_each_step
    elif on("clean_drawn_each_step") and step % 100 == 0:
        drawn.append(loss.item())
        text = chart([math.log(v) for v in (drawn * 40)[-300:]])
    if step % 50 == 0:
        print(step, round(loss.item(), 4), flush=True)
cost.print(steps)
