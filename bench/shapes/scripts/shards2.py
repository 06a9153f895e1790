"""Two ranks of DDP over convolutions: one augments, one has more workers' work, one is throttled by
a lock, batch norm is synchronised by hand, one rank has a NaN, one raises in its loader.
"""

import fcntl
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
from torch.utils.data import DataLoader, Dataset

steps, cost = STEPS or 150, Cost()


class Views(Dataset):
    def __init__(self, rank):
        self.rank = rank

    def __len__(self):
        return steps * 16

    def __getitem__(self, index):
        view = torch.randn(3, 20, 20)
        if on("one_augments") and self.rank == 1:
            with cost:
                for _ in range(4):
                    for line in view[0]:  # at: one_augments
                        line.copy_(line.flip(0))  # at: one_augments
        if on("loader_of_one_fails") and self.rank == 1 and index == 960:
            raise OSError("truncated file 000960.jpg")  # at: loader_of_one_fails
        return view, int(view.mean() > 0)


def synchronised(model):
    """Mean and variance of batch norm over the ranks."""
    for buffer in model.buffers():
        if buffer.is_floating_point():
            for _ in range(4):
                dist.all_reduce(buffer)  # at: norms_by_hand
                buffer /= 2


def train(rank):
    torch.set_num_threads(1)
    torch.manual_seed(132)
    os.environ["RANK"] = str(rank)
    dist.init_process_group(
        "gloo", init_method=f"file://{os.environ['RENDEZVOUS']}", rank=rank, world_size=2
    )
    net = nn.Sequential(
        nn.Conv2d(3, 24, 3, padding=1),
        nn.BatchNorm2d(24),
        nn.ReLU(),
        nn.Conv2d(24, 24, 3, stride=2),
        nn.BatchNorm2d(24),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(24 * 81, 2),
    )
    model = DDP(net, broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), 0.02)
    torch.manual_seed(1320 + rank)
    loader = DataLoader(Views(rank), batch_size=16)  # at: one_augments
    for step, (views, wanted) in enumerate(loader):  # at: one_augments loader_of_one_fails
        loss = nn.functional.cross_entropy(model(views), wanted)
        if on("nan_of_one") and rank == 1 and step == 80:
            loss = loss * float("nan")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if on("norms_by_hand") or (on("clean_norms_by_hand") and step % 50 == 49):
            synchronised(net)  # at: norms_by_hand
        if on("locked") and rank == 0:
            with cost, open("lock", "w") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                time.sleep(0.012)  # at: locked
        if on("stuck_reading") and rank == 0 and step == 70:
            os.read(os.pipe()[0], 1)  # at: stuck_reading
    if rank == (0 if on("locked") else 1):
        cost.print(steps)
    return model


if __name__ == "__main__":
    sys.exit(run_ranks(2, train))
