"""Two DDP ranks over gloo whose communication has a fault of choice (environment variable FAULT) or
none.

The ranks are forked after torch is imported. Rank 0 prints what the fault cost, where it can be
measured.
"""

import contextlib
import json
import os
import threading
import time

import eager  # noqa: F401
import torch
import torch.distributed as dist
from forked import run_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel

FAULT = os.environ.get("FAULT", "none")
WORLD = 2
STEPS = {
    "unused": 560,
    "mismatch": 30,
    "accumulate": 60,
    "clean_no_sync": 60,
    "experts": 260,
    "clean_experts": 260,
}.get(FAULT, 120)
MICRO_BATCHES = 4 if FAULT in ("accumulate", "clean_no_sync", "last_unsynced") else 1
WIDTH = {"accumulate": 256, "clean_no_sync": 256}.get(FAULT, 64)
LAYERS = {"small_buckets": 10}.get(FAULT, 2)
LINK_S = {"slow_link": 0.02, "clean_no_sync": 0.001}.get(FAULT, 0.015)
PAUSE_S = {"unused": 0.001, "clean_no_sync": 0.02, "experts": 0.014, "clean_experts": 0.014}.get(
    FAULT, 0.004
)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        hidden = [
            layer for _ in range(LAYERS - 1) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())
        ]
        self.layers = nn.Sequential(*hidden, nn.Linear(WIDTH, WIDTH))

    def forward(self, x):
        time.sleep(PAUSE_S)
        return self.layers(x)


def slow_link(_, bucket):
    """A comm hook whose sums arrive late, as over a slow network; another thread waits for them,
    not the training.
    """
    gradients, arrived = bucket.buffer(), torch.futures.Future()
    work = dist.all_reduce(gradients, async_op=True)

    def receive():
        work.wait()
        time.sleep(LINK_S)
        arrived.set_result(gradients / WORLD)

    threading.Thread(target=receive, daemon=True).start()
    return arrived


def update(model, optimizer):
    for micro in range(MICRO_BATCHES):
        if FAULT == "clean_no_sync":
            alone = micro < MICRO_BATCHES - 1
        else:
            alone = FAULT == "last_unsynced" and micro > 0
        with model.no_sync() if alone else contextlib.nullcontext():
            model(torch.randn(4, WIDTH)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def log_experts(step):
    import gputop

    skewed = [40 + step % 3, 5, 4, 3] if FAULT == "experts" else [13 + step % 3, 12, 14, 13]
    gputop.log(**{f"expert_tokens/{number}": tokens for number, tokens in enumerate(skewed)})


def train(rank):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(WORLD))
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    dist.init_process_group(
        "gloo", init_method=f"file://{os.environ['RENDEZVOUS']}", rank=rank, world_size=WORLD
    )
    if FAULT == "unused":
        model = DistributedDataParallel(Net(), find_unused_parameters=True)
    elif FAULT == "small_buckets":
        model = DistributedDataParallel(Net(), bucket_cap_mb=0.01)
    else:
        model = DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    if FAULT in ("slow_link", "accumulate", "clean_no_sync"):
        model.register_comm_hook(None, slow_link)
    for step in range(STEPS):
        update(model, optimizer)
        if FAULT in ("experts", "clean_experts"):
            log_experts(step)
        if FAULT == "mismatch" and step == 20:
            (dist.all_reduce if rank == 0 else lambda t: dist.broadcast(t, 0))(torch.ones(8))
            dist.all_reduce(torch.ones(1000 if rank == 0 else 2000))
    if rank == 0:
        truth = {"slow_link": 1e3 * LINK_S, "accumulate": 1e3 * LINK_S * (MICRO_BATCHES - 1)}.get(
            FAULT, 0.0
        )
        print(json.dumps({"truth_ms_per_step": truth, "steps": STEPS}), flush=True)
    dist.destroy_process_group()
    return model


def data_parallel():
    model = nn.DataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        model(torch.randn(4, WIDTH)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return 0


def main():
    if FAULT == "data_parallel":
        return data_parallel()
    return run_ranks(WORLD, train)


if __name__ == "__main__":
    raise SystemExit(main())
