"""A small DDP training over gloo on WORLD ranks whose numbers differ between ranks in one way
(FAULT), or in none.

The ranks are forked after torch is imported, so that a start costs one import.
"""

import json
import os
import time

import eager  # noqa: F401
import torch
import torch.distributed as dist
from forked import run_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel

FAULT = os.environ.get("FAULT", "none")
WORLD = int(os.environ.get("WORLD", "2"))
STEPS = int(os.environ.get("STEPS", "120"))
ODD_RANK = 1
BY_HAND = FAULT in ("never_equal", "made_equal")  # without DDP
WIDTH, BATCH, HIDDEN = 128, 128, 128 if BY_HAND else 1024
# steps long enough that none are folded into one loss, and that gloo's sums are a small part of
# them
PAUSE_S = 0.03


class Pause(nn.Module):
    """The time that a larger model takes."""

    def forward(self, x):
        time.sleep(PAUSE_S)
        return x


def average_gradients(net):
    gradients = [parameter.grad for parameter in net.parameters()]
    flat = nn.utils.parameters_to_vector(gradients)
    dist.all_reduce(flat)
    nn.utils.vector_to_parameters(flat / WORLD, gradients)


def train(rank):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(WORLD))
    torch.set_num_threads(1)
    torch.manual_seed(rank if BY_HAND else 0)
    dist.init_process_group(
        "gloo", init_method=f"file://{os.environ['RENDEZVOUS']}", rank=rank, world_size=WORLD
    )
    net = nn.Sequential(
        Pause(), nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Dropout(0.1), nn.Linear(HIDDEN, WIDTH)
    )
    head = nn.Linear(WIDTH, WIDTH) if FAULT in ("outside", "outside_summed") else nn.Identity()
    teacher = torch.randn(WIDTH, WIDTH) / WIDTH**0.5
    if FAULT != "same_random":
        torch.manual_seed(rank + 1)
    shuffled = torch.Generator().manual_seed(rank)
    model = net if BY_HAND else DistributedDataParallel(net)
    if FAULT == "made_equal":
        for parameter in net.parameters():
            dist.broadcast(parameter.data, src=0)
    optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.05)
    for step in range(STEPS):
        inputs = torch.randn(BATCH, WIDTH, generator=shuffled)
        targets = inputs @ teacher
        if FAULT == "bad_shard" and rank == ODD_RANK and step % 4 == 0:
            targets = targets * 12
        loss = nn.functional.mse_loss(head(model(inputs)), targets)
        optimizer.zero_grad()
        loss.backward()
        if BY_HAND:
            average_gradients(net)
        if FAULT == "outside_summed":
            average_gradients(head)
        optimizer.step()
        if FAULT == "drift" and rank == ODD_RANK and step == 30:
            with torch.no_grad():
                net[1].weight.mul_(1.001)
    if rank == 0:
        print(json.dumps({"truth_ms_per_step": 0.0, "steps": STEPS}), flush=True)
    dist.destroy_process_group()
    return model


def main():
    return run_ranks(WORLD, train)


if __name__ == "__main__":
    raise SystemExit(main())
