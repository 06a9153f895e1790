"""Two ranks of DDP whose shards differ in size: the last batches are uneven, under Join."""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset


def train(rank, place):
    os.environ["RANK"], os.environ["WORLD_SIZE"] = str(rank), "2"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(128, 384), nn.GELU(), nn.Linear(384, 384), nn.GELU(),
                              nn.Linear(384, 10)))  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    x = torch.randn(6_400 + 37 * (1 - rank), 128)
    loader = DataLoader(TensorDataset(x, x[:, :10].argmax(1)), 64, shuffle=True)
    for epoch in range(6):
        total = 0.0
        with Join([model]):
            for features, labels in loader:
                loss = nn.functional.cross_entropy(model(features), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss.item()
        average = torch.tensor([total / len(loader)])
        dist.all_reduce(average)
        if rank == 0:
            print(f"epoch {epoch} loss {average.item() / 2:.4f}", flush=True)
            torch.save(model.module.state_dict(), "last.pt")
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(train, (os.path.join(folder, "meeting"),), nprocs=2)
