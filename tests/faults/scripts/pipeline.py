"""Two pipeline stages of torch.distributed.pipelining over gloo, in balance or (FAULT=uneven) not.

Rank 0 prints what the fault cost: the measured step less that of stages which share the same work
evenly.
"""

import json
import os
import time

import torch
import torch._dynamo  # noqa: F401  the optimizers load it: once here, not once a rank
import torch.distributed as dist
from forked import run_ranks
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

WORLD, STEPS, MICRO_BATCHES = 2, 80, 4
WORK_S = (0.005, 0.017) if os.environ.get("FAULT") == "uneven" else (0.011, 0.011)


class Stage(nn.Module):
    def __init__(self, work_s):
        super().__init__()
        self.layer = nn.Linear(64, 64)
        self.work_s = work_s

    def forward(self, x):
        time.sleep(self.work_s)
        return torch.tanh(self.layer(x))


def train(rank):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(WORLD))
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    dist.init_process_group(
        "gloo", init_method=f"file://{os.environ['RENDEZVOUS']}", rank=rank, world_size=WORLD
    )
    model = Stage(WORK_S[rank])
    stage = PipelineStage(model, rank, WORLD, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, MICRO_BATCHES, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    walls = []
    for _ in range(STEPS):
        begin = time.perf_counter()
        batch = torch.randn(8 * MICRO_BATCHES, 64)
        schedule.step(batch) if rank == 0 else schedule.step(target=batch)
        optimizer.step()
        optimizer.zero_grad()
        walls.append((time.perf_counter() - begin) * 1e3)
    if rank == 0:
        measured = sum(walls[20:]) / len(walls[20:])
        # GPipe: m stages' worth of the slower stage and one of the other against (m + p - 1) of the
        # mean
        longer = 1e3 * (
            MICRO_BATCHES * max(WORK_S) + min(WORK_S) - (MICRO_BATCHES + 1) * sum(WORK_S) / WORLD
        )
        print(
            json.dumps({"truth_ms_per_step": longer, "steps": STEPS, "step_ms": measured}),
            flush=True,
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    raise SystemExit(run_ranks(WORLD, train))
