"""Two ranks of DDP over a GRU of sensors: figures summed one by one, a head of its own, one rank
that reads a journal.
"""

import json
import os
import sys

import eager  # noqa: F401
import torch
import torch.distributed as dist
from forked import run_ranks
from shape import STEPS, on
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

steps = STEPS or 220


class Sensors(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru, self.out = nn.GRU(16, 96, batch_first=True), nn.Linear(96, 32)

    def forward(self, x):
        return self.out(self.gru(x)[0][:, -1])


def train(rank):
    torch.set_num_threads(1)
    torch.manual_seed(5)
    os.environ["RANK"] = str(rank)
    dist.init_process_group(
        "gloo", init_method=f"file://{os.environ['RENDEZVOUS']}", rank=rank, world_size=2
    )
    body, head = DDP(Sensors()), nn.Linear(32, 4)
    if not on("head_alone"):
        head = DDP(head)
    optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()], 1e-3)
    torch.manual_seed(5 if on("same_seed_data") else 50 + rank)
    journal = [{"step": k, "note": "x" * 20} for k in range(3000)]
    for step in range(steps):
        x = torch.randn(32, 24, 16)
        loss = nn.functional.cross_entropy(head(body(x)), torch.randint(0, 4, (32,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if on("figures_summed") or (on("clean_figures_summed") and step % 50 == 0):
            for figure in (*[one.grad.norm() for one in body.parameters()] * 5, loss.detach()):
                dist.all_reduce(figure)  # at: figures_summed
        if on("journal_of_one") and rank == 1:
            json.loads(json.dumps(journal))  # at: journal_of_one
        if on("clean_journal_of_one") and step % 100 == 0 and rank == 1:
            json.loads(json.dumps(journal))
    return body


if __name__ == "__main__":
    sys.exit(run_ranks(2, train))
