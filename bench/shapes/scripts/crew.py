"""Two ranks of DDP over a residual net of readings: a rank that writes to disk, one with a hook in
its backward, and a model that is called past DDP.
"""

import os
import sys
import time

import eager  # noqa: F401
import torch
import torch.distributed as dist
from forked import run_ranks
from shape import STEPS, Cost, on
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

steps = STEPS or 200


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.out = nn.Linear(64, 256), nn.Linear(256, 8)
        self.blocks = nn.ModuleList(nn.Linear(256, 256) for _ in range(4))

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = x + torch.tanh(block(x))
        return self.out(x)


def inspected(gradient):
    """Largest gradient of each unit, unit by unit."""
    with cost:
        largest = [max(row.tolist(), key=abs) for row in gradient]  # at: hook_on_one
        assert len(largest) == len(gradient)


cost = Cost()


def train(rank):
    torch.set_num_threads(1)
    torch.manual_seed(87)
    os.environ["RANK"] = str(rank)
    dist.init_process_group(
        "gloo", init_method=f"file://{os.environ['RENDEZVOUS']}", rank=rank, world_size=2
    )
    model = DDP(Net())
    forward = model.module if on("module_called") else model  # at: module_called
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    torch.manual_seed(870 + rank)
    if on("hook_on_one") and rank == 1:
        model.module.blocks[1].weight.register_hook(inspected)
    for step in range(steps):
        x = torch.randn(96, 64)
        loss = nn.functional.cross_entropy(forward(x), x[:, :8].argmax(1))  # at: module_called
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        often = on("one_writes") or (on("clean_one_writes") and step % 50 == 49)
        if often and rank == 1:
            with cost, open("gradients.bin", "wb") as file:
                for parameter in model.parameters():
                    file.write(parameter.grad.numpy().tobytes())  # at: one_writes
                os.fsync(file.fileno())  # at: one_writes
                time.sleep(0.006)  # at: one_writes
    if rank == 1:
        cost.print(steps)
    return model


if __name__ == "__main__":
    sys.exit(run_ranks(2, train))
