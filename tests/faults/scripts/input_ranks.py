"""Two ranks of DDP over gloo that each train on a shard, or on the same batches
(FAULT=same_data).
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
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

FAULT = os.environ.get("FAULT", "none")
WORLD = 2
STEPS = int(os.environ.get("STEPS", "170"))
BATCH = 4


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(32, 32)

    def forward(self, x):
        time.sleep(0.012)
        return self.layer(x)


def train(rank):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(WORLD))
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group(
        "gloo", init_method=f"file://{os.environ['RENDEZVOUS']}", rank=rank, world_size=WORLD
    )
    data = TensorDataset(torch.randn(STEPS * BATCH * WORLD, 32))
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    if FAULT == "same_data":
        loader = DataLoader(data, BATCH, shuffle=True)
    else:
        loader = DataLoader(data, BATCH, sampler=DistributedSampler(data))
    for step, (batch,) in enumerate(loader):
        if step == STEPS:
            break
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    if rank == 0:
        print(json.dumps({"truth_ms_per_step": 0.0, "steps": STEPS}), flush=True)
    dist.destroy_process_group()
    return model


def main():
    return run_ranks(WORLD, train)


if __name__ == "__main__":
    raise SystemExit(main())
