"""Clicks of users on items: a large table of users whose rows are rarely met, a writer thread, a
look at the machine by another program.
"""

import queue
import subprocess
import sys
import threading
import time

import eager  # noqa: F401
import torch
from shape import STEPS, Cost, on
from torch import nn

steps, cost = STEPS or 300, Cost()
torch.set_num_threads(1)
torch.manual_seed(91)
users = 120_000 if on("dense_rows") else 3_000


class Clicks(nn.Module):
    def __init__(self):
        super().__init__()
        self.users = nn.Embedding(users, 24)  # at: dense_rows
        self.items = nn.Embedding(2_000, 24)
        self.tower = nn.Sequential(nn.Linear(48, 192), nn.ReLU(), nn.Linear(192, 1))

    def forward(self, user, item):
        return self.tower(torch.cat([self.users(user), self.items(item)], 1))[:, 0]


def write():
    """Write what comes, which takes longer than a step."""
    while True:
        number, value = waiting.get()
        time.sleep(0.05)
        torch.save(value, f"gradient_{number % 4}.pt")


waiting = queue.Queue(maxsize=4 if on("clean_queue_behind") else 0)
threading.Thread(target=write, daemon=True).start()
model = Clicks()
optimizer = torch.optim.Adam(model.parameters(), 1e-3)  # at: dense_rows
for step in range(steps):
    user, item = torch.randint(0, users, (256,)), torch.randint(0, 2_000, (256,))
    clicked = ((user + item) % 5 == 0).float()
    loss = nn.functional.binary_cross_entropy_with_logits(model(user, item), clicked)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # at: dense_rows
    if on("queue_behind") or (on("clean_queue_behind") and not waiting.full()):
        kept = torch.cat([model.users.weight.grad, model.items.weight.grad])  # at: queue_behind
        waiting.put((step, kept))  # at: queue_behind
    if on("asks_subprocess") or (on("clean_asks_subprocess") and step % 100 == 99):
        with cost:
            asked = [sys.executable, "-S", "-c", "import os; print(os.getloadavg())"]
            done = subprocess.run(asked, capture_output=True)  # at: asks_subprocess
            load = done.stdout.decode()
    if step % 50 == 0:
        print(step, loss.item(), flush=True)
cost.print(steps)
