"""Points of five spirals: labels that do not go with their points, softmax before the loss, decay
that takes all weights, an optimizer made anew, one batch for ever.
"""

import eager  # noqa: F401
import torch
from shape import STEPS, on
from torch import nn

steps = STEPS or 900
torch.set_num_threads(1)
torch.manual_seed(92)
labels = torch.arange(4_000) % 5
angle = torch.rand(4_000) * 4
radius = angle / 4 + 0.1
turned = angle + labels * 1.2566
points = torch.stack([radius * turned.cos(), radius * turned.sin()], 1)
points += 0.01 * torch.randn_like(points)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(2, 192), nn.ReLU(), nn.Linear(192, 192), nn.ReLU(), nn.Linear(192, 5)
        )

    def forward(self, x):
        x = self.body(x)
        return x.softmax(1) if on("softmax_twice") else x  # at: softmax_twice


def batches():
    """Yield points and labels, in an order of each epoch's own."""
    while True:
        order = torch.randperm(len(points))
        if on("labels_apart"):
            parts = points[order].split(100), labels.split(100)  # at: labels_apart
            yield from zip(*parts, strict=True)
        else:
            yield from zip(points[order].split(100), labels[order].split(100), strict=False)


def made():
    if on("weights_decay_away"):
        return sgd(net.parameters(), 0.1, 0.9, weight_decay=0.5)  # at: weights_decay_away
    if on("clean_weights_decay_away"):
        return sgd(net.parameters(), 0.1, 0.9, weight_decay=5e-4)
    if on("optimizer_anew", "clean_optimizer_anew"):
        return sgd(net.parameters(), 1e-3, 0.99)  # at: optimizer_anew
    return torch.optim.Adam(net.parameters(), 1e-3)


net, sgd = Net(), torch.optim.SGD
optimizer = made()
source = batches()
x, y = next(source)
for step in range(steps):
    if not on("one_batch"):
        x, y = next(source)
    if on("optimizer_anew") or (on("clean_optimizer_anew") and step % 300 == 0):
        optimizer = made()  # at: optimizer_anew
    out = net(x)
    if on("clean_softmax_twice"):
        loss = nn.functional.nll_loss(out.log_softmax(1), y)
    else:
        loss = nn.functional.cross_entropy(out, y)  # at: softmax_twice
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        hits = (out.argmax(1) == y).float().mean().item()
        print(f"step {step} loss {loss.item():.4f} accuracy {hits:.2f}", flush=True)
