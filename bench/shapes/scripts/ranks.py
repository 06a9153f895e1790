"""Three ranks of DDP, a transformer or convolutions: one of them at fault, or the way they talk."""

import copy
import os
import time

import eager  # noqa: F401
import torch
import torch.distributed as dist
from forked import run_ranks
from shape import STEPS, on
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

steps = STEPS or 300


class Words(Dataset):
    def __init__(self, rank):
        self.rank = rank

    def __len__(self):
        return 16 * steps

    def __getitem__(self, index):
        if on("slow_reader") and self.rank == 1:
            time.sleep(0.0012)  # at: slow_reader
        length = 72 if on("long_texts") and self.rank == 1 else 24
        return torch.randint(0, 200, (length,))


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(200, 48), nn.Linear(48, 200)
        self.body = nn.TransformerEncoderLayer(48, 4, 96, batch_first=True)
        self.late = 0.0

    def forward(self, words):
        if self.late:
            time.sleep(self.late)  # at: late_forward
        return self.out(self.body(self.embed(words)))


world = 2 if on("late_forward", "larger_batch", "clean_late_forward") else 3


def main(rank):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(20000 + os.getppid() % 20000))
    torch.set_num_threads(1)
    torch.manual_seed(rank if on("other_seed") else 0)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    net = Reader()
    model = DistributedDataParallel(net)
    torch.manual_seed(rank)
    if on("late_forward") and rank == 1:
        net.late = 0.012
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    size = 36 if on("larger_batch") and rank == 1 else 8
    loader = DataLoader(Words(rank), size)
    data = iter(loader)  # at: slow_reader
    for step in range(steps):
        try:
            words = next(data)  # at: slow_reader
        except StopIteration:
            data = iter(loader)
            words = next(data)
        loss = F.cross_entropy(model(words).flatten(0, 1)[:-1], words.flatten()[1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if on("rank0_copies") and rank == 0:
            for _ in range(6):
                copy.deepcopy(net)  # at: rank0_copies
        elif on("clean_rank0_copies") and rank == 0 and step % 50 == 0:
            copy.deepcopy(net)
        if on("rank2_logs") and rank == 2:
            with open("log.txt", "a") as file:
                for name, one in net.named_parameters():
                    file.write(f"{name} {one.flatten()[:200].tolist()}\n")  # at: rank2_logs
    dist.barrier()
    return model


run_ranks(world, main)
