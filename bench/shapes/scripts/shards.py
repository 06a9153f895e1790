"""Two ranks of DDP: shards whose batches are not equally many, and a large buffer that DDP sends to
all ranks in each forward.
"""

import os
import sys

import eager  # noqa: F401
import torch
import torch.distributed as dist
from forked import run_ranks
from shape import STEPS, on
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

steps = STEPS or 250


class Retrieval(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
        rows = 30_000 if on("buffers_sent", "clean_buffers_sent") else 500
        self.register_buffer("bank", torch.randn(rows, 64))  # at: buffers_sent

    def forward(self, x):
        return self.net(x) @ self.bank[:500].T


def train(rank):
    torch.set_num_threads(1)
    torch.manual_seed(95)
    os.environ["RANK"] = str(rank)
    dist.init_process_group(
        "gloo", init_method=f"file://{os.environ['RENDEZVOUS']}", rank=rank, world_size=2
    )
    own = {"broadcast_buffers": False} if on("clean_buffers_sent") else {}
    model = DDP(Retrieval(), **own)  # at: buffers_sent
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    torch.manual_seed(950 + rank)
    rows = 64 * steps + (64 if rank == 0 and on("uneven_end") else 0)
    x = torch.randn(rows, 64)
    for start in range(0, rows, 64):
        batch = x[start : start + 64]
        out = model(batch)  # at: buffers_sent uneven_end
        loss = nn.functional.cross_entropy(out, batch[:, :50].argmax(1))
        optimizer.zero_grad()
        loss.backward()  # at: uneven_end
        optimizer.step()
    total = torch.tensor([loss.item()])
    dist.all_reduce(total)  # at: uneven_end
    print("mean loss", total.item() / 2, flush=True)
    return model


if __name__ == "__main__":
    sys.exit(run_ranks(2, train))
