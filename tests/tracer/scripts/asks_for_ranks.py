"""Reads and writes beside its folder, and asks whether it is one rank of many."""

import os

import torch
from torch import nn

assert int(os.environ.get("RANK", -1)) == -1 and "LOCAL_RANK" not in os.environ, (
    "nobody launched it"
)
with open("../data/sizes.txt") as file:
    width = int(file.read())
assert os.path.exists("../data") and os.listdir("../data") == ["sizes.txt"]
os.makedirs("../out", exist_ok=True)
with open(os.path.join("..", "out", "log.txt"), "w") as file:
    file.write("written")
with open("../out/log.txt") as file:
    assert file.read() == "written"

model = nn.Linear(64, width).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.randn(8, 64, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
