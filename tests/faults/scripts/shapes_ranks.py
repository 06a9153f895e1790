"""DDP trainings over gloo on WORLD ranks whose batches differ in shape (environment variable
FAULT), or do not.
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
SHORT = int(os.environ.get("SHORT", "48"))
LONG = float(os.environ.get("LONG", "2"))
LONG_RANK = int(os.environ.get("LONG_RANK", "1"))


class Reader(nn.Module):
    """A GRU over embeddings: its time goes with the length."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(300, 64)
        self.cells = nn.GRU(64, 96, batch_first=True)
        self.out = nn.Linear(96, 300)

    def forward(self, words):
        return self.out(self.cells(self.words(words))[0])


def texts(rank, step):
    """Token ids: of one rank they are longer, or (clean) of all ranks alike."""
    long = FAULT == "longer_texts" and rank == LONG_RANK
    return torch.randint(300, (8, int(SHORT * (LONG if long else 1)) + step % 3))


def train(rank):
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    dist.init_process_group(
        "gloo", init_method="file://" + os.environ["RENDEZVOUS"], rank=rank, world_size=WORLD
    )
    model = DistributedDataParallel(Reader())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    busy_s = 0.0
    for step in range(STEPS):
        words = texts(rank, step)
        begin = time.thread_time()
        loss = nn.functional.cross_entropy(model(words).transpose(1, 2), words)
        loss.backward()
        busy_s += time.thread_time() - begin
        optimizer.step()
        optimizer.zero_grad()
    spent = [torch.zeros(1) for _ in range(WORLD)]
    dist.all_gather(spent, torch.tensor([busy_s / STEPS * 1e3]))
    if rank == 0:
        others = [float(one) for place, one in enumerate(spent) if place != LONG_RANK]
        lost = (
            float(spent[LONG_RANK]) - sum(others) / len(others) if FAULT == "longer_texts" else 0.0
        )
        print(json.dumps({"truth_ms_per_step": lost, "steps": STEPS}))
    return model


if __name__ == "__main__":
    os.environ.update(WORLD_SIZE=str(WORLD), LOCAL_WORLD_SIZE=str(WORLD))
    raise SystemExit(run_ranks(WORLD, train))
