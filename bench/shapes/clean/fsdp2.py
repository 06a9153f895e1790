"""Two ranks of FSDP2 on gloo: a transformer sharded layer by layer, accumulation without sync,
validation every 40 steps.
"""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def train(rank, place):
    os.environ["RANK"], os.environ["WORLD_SIZE"] = str(rank), "2"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.TransformerEncoderLayer(96, 4, 192, 0.0, batch_first=True) for _ in range(3)),
        nn.Linear(96, 32),
    )
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4)
    torch.manual_seed(100 + rank)
    for step in range(120):
        for micro in range(2):
            model.set_requires_gradient_sync(micro == 1)
            x = torch.randn(16, 24, 96)
            loss = nn.functional.mse_loss(model(x), x[..., :32].cumsum(1) / 5) / 2
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 40 == 39:
            with torch.no_grad():
                x = torch.randn(16, 24, 96)
                valid = nn.functional.mse_loss(model(x), x[..., :32].cumsum(1) / 5)
            dist.all_reduce(valid)
            if rank == 0:
                print(step, loss.item(), valid.item() / 2, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(train, (os.path.join(folder, "meeting"),), nprocs=2)
