"""A time-major LSTM over a character stream, truncated backpropagation, gradient clipping."""

import collections
import os

import eager  # noqa: F401
import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F

torch.set_num_threads(1)
torch.manual_seed(2)
steps, cost = STEPS or 1200, Cost()
stream = torch.randint(0, 50, (4000, 16))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 48)
        self.lstm = nn.LSTM(48, 96)
        self.out = nn.Linear(96, 50)
        self.relu = nn.Linear(96, 96) if on("dead_relu", "clean_dead_relu") else None

    def forward(self, tokens, state):
        hidden, state = self.lstm(self.embed(tokens), state)
        if self.relu:
            hidden = F.relu(self.relu(hidden))
        return self.out(hidden) if not on(
            "dead_relu"
        ) else hidden @ self.out.weight.detach().T, state


model = Model()
rate = 3e4 if on("lr_nan") else 4.0 if on("clean_lr_nan") else 0.5
optimizer = torch.optim.SGD(model.parameters(), rate)
if on("dead_relu"):
    with torch.no_grad():
        model.relu.bias.fill_(-40.0)
if on("clean_dead_relu"):
    with torch.no_grad():
        model.relu.bias[::2] = -40.0
scheduler = None
if on("lr_gone"):
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.6)
if on("clean_lr_gone"):
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, eta_min=1e-5)
history, recent, state, total = [], collections.deque(maxlen=20), None, 0.0
clip = 1e-4 if on("always_clipped") else 5.0
position = 0
for step in range(steps):
    window = stream[position : position + 25]
    target = stream[position + 1 : position + 26]
    position = (position + 24) % 3900
    logits, state = model(window, state)
    state = tuple(one.detach() for one in state)
    loss = F.cross_entropy(logits.flatten(0, 1), target.flatten())
    if on("regress"):
        loss = loss * 1.0
    optimizer.zero_grad()
    loss.backward()
    if on("always_clipped", "clean_always_clipped"):
        nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    if scheduler:
        scheduler.step()
    if on("losses_keep_graph"):
        check, _ = model(window.flip(0), None)
        history.append(F.cross_entropy(check.flatten(0, 1), target.flatten()))
    elif on("clean_losses_keep_graph"):
        check, _ = model(window.flip(0), None)
        history.append(F.cross_entropy(check.flatten(0, 1), target.flatten()).item())
    if on("outputs_kept"):
        history.append(logits.detach().softmax(-1).repeat(8, 1, 1))
    elif on("clean_outputs_kept"):
        recent.append(logits.detach().softmax(-1).repeat(8, 1, 1))
    if on("history_mean"):
        history.extend([float(loss)] * 150)
        with cost:
            mean = sum(x * x for x in history) / len(history)  # at: history_mean
            worst = sorted(history)[-1]  # at: history_mean
    elif on("clean_history_mean"):
        total += float(loss)
        mean = total / (step + 1)
    if on("killed") and step == 150:
        os.kill(os.getpid(), 9)
    if on("numpy_cache"):
        history.append(bytearray(os.urandom(64)) * 8000)
    elif on("clean_numpy_cache"):
        recent.append(bytearray(os.urandom(64)) * 8000)
cost.print(steps)
