"""Local SGD on two ranks without DDP: weights are averaged every 8 steps."""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

PERIOD = 8


@torch.no_grad()
def average(model):
    flat = parameters_to_vector(model.parameters())
    dist.all_reduce(flat)
    vector_to_parameters(flat / dist.get_world_size(), model.parameters())


def main(rank, world, store):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    torch.manual_seed(7)
    target = nn.Sequential(nn.Linear(48, 32), nn.Tanh(), nn.Linear(32, 8)).requires_grad_(False)
    target[0].weight.mul_(1.5)
    model = nn.Sequential(
        nn.Linear(48, 320), nn.SiLU(), nn.LayerNorm(320),
        nn.Linear(320, 320), nn.SiLU(), nn.LayerNorm(320),
        nn.Linear(320, 8),
    )  # fmt: skip
    generator = torch.Generator().manual_seed(rank)
    inputs = torch.randn(20_000, 48, generator=generator)
    outputs = 3 * target(inputs) + 0.05 * torch.randn(20_000, 8, generator=generator)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 480)
    for step in range(1, 481):
        chosen = torch.randint(20_000, (512,), generator=generator)
        loss = nn.functional.mse_loss(model(inputs[chosen]), outputs[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % PERIOD == 0:
            average(model)
        if step % 80 == 0:
            shown = loss.detach().clone()
            dist.all_reduce(shown)
            if rank == 0:
                print(f"step {step} mean loss {shown.item() / world:.5f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        mp.spawn(main, args=(2, os.path.join(scratch, "store")), nprocs=2)
