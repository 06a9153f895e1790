"""A small model under FSDP2 (fully_shard) on two ranks over gloo; with FAULT=slow, rank 1 computes
longer.

It trains for 12 seconds: what tells who waits is asked for every 4 seconds. Rank 0 prints what the
fault cost.
"""

import json
import os
import time

import torch
import torch._dynamo  # noqa: F401  the optimizers load it: once here, not once a rank
import torch.distributed as dist
from forked import run_ranks
from torch import nn
from torch.distributed.fsdp import fully_shard

WORLD, SECONDS, CHECK_EVERY = 2, 8.0, 20
PAUSE_S = 0.02 if os.environ.get("FAULT") == "slow" else 0.0


class Work(nn.Module):
    """Takes time in forward, as a slow device would."""

    def __init__(self, seconds):
        super().__init__()
        self.seconds = seconds

    def forward(self, x):
        time.sleep(self.seconds)
        return torch.tanh(x)


def build(rank):
    work_s = 0.006 + (PAUSE_S / 2 if rank == 1 else 0.0)
    blocks = [nn.Sequential(nn.Linear(64, 64), Work(work_s)) for _ in range(2)]
    for block in blocks:
        fully_shard(block)
    return fully_shard(nn.Sequential(*blocks))


def train(rank):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(WORLD))
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    dist.init_process_group(
        "gloo", init_method=f"file://{os.environ['RENDEZVOUS']}", rank=rank, world_size=WORLD
    )
    model = build(rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    begin, step, going = time.monotonic(), 0, torch.ones(1)
    while going.item():
        batch = torch.randn(16, 64)
        nn.functional.mse_loss(model(batch), batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step % CHECK_EVERY == 0:  # all ranks must stop at the same step
            going.fill_(float(time.monotonic() - begin < SECONDS))
            dist.broadcast(going, 0)
    if rank == 0:
        print(json.dumps({"truth_ms_per_step": PAUSE_S * 1e3, "steps": step}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    raise SystemExit(run_ranks(WORLD, train))
