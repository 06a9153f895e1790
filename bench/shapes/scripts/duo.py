"""Two ranks of DDP on sums of digits: one logs, one has larger batches, both talk too much,
parameters that are searched for in vain, one that reads slowly.
"""

import json
import os
import sys
import time

import eager  # noqa: F401
import torch
import torch.distributed as dist
from forked import run_ranks
from shape import STEPS, Cost, on
from torch import nn
from torch.nn.parallel import DistributedDataParallel

steps = STEPS or 220


class Sums(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 64)
        self.body = nn.Sequential(nn.Linear(64, 384), nn.GELU(), nn.Linear(384, 384), nn.GELU())
        self.out = nn.Linear(384, 1)

    def forward(self, digits):
        return self.out(self.body(self.embed(digits)).mean(1)).squeeze(1)


def report(model, cost):
    """Norms of all parameters as text."""
    with cost:
        rows = [
            [round(v, 4) for v in p.detach().flatten()[:9000].tolist()] for p in model.parameters()
        ]  # at: one_reports
        return len(json.dumps(rows))  # at: one_reports


def main(rank):
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(20000 + os.getppid() % 20000))
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    net, cost = Sums(), Cost()
    search = on("searched_in_vain")
    model = DistributedDataParallel(net, find_unused_parameters=search)  # at: searched_in_vain
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    torch.manual_seed(rank)
    seen = []
    for step in range(steps):
        size = 96
        if rank == 1 and on("larger_on_one"):
            size = 192
        if on("clean_larger_on_one"):
            size = 96 + 8 * ((step + rank) % 2)
        digits = torch.randint(0, 10, (size, 12))
        if rank == 1 and on("one_reads_slowly"):
            time.sleep(0.012)  # at: one_reads_slowly
        loss = (model(digits) - digits.float().sum(1) / 10).pow(2).mean()  # at: larger_on_one
        optimizer.zero_grad()
        loss.backward()  # at: larger_on_one
        optimizer.step()
        if rank == 1 and (on("one_reports") or (on("clean_one_reports") and step % 100 == 0)):
            report(net, cost)  # at: one_reports
        if on("objects_gathered") or (on("clean_objects_gathered") and step % 50 == 0):
            everybody = [None, None]
            dist.all_gather_object(
                everybody, {"loss": loss.item(), "rank": rank}
            )  # at: objects_gathered
            dist.barrier()  # at: objects_gathered
            for p in net.parameters() if on("objects_gathered") else ():
                norm = p.grad.norm()
                dist.all_reduce(norm)  # at: objects_gathered
                seen.append(norm.item())
        if step % 50 == 0 and rank == 0:
            print(step, round(loss.item(), 4), flush=True)
    if rank == 1:
        cost.print(steps)
    dist.destroy_process_group()
    return model


if __name__ == "__main__":
    sys.exit(run_ranks(2, main))
