"""A process for each GPU, which wraps its model in FSDP1 and samples from what the model says."""

import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel


def work(rank: int, ranks: int) -> None:
    dist.init_process_group("nccl", rank=rank, world_size=ranks)
    torch.cuda.set_device(rank)
    model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256))
    model = FullyShardedDataParallel(model, device_id=torch.cuda.current_device())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(4):
        logits = model(torch.randn(32, 256).to(rank))
        chosen = torch.distributions.Categorical(probs=logits.softmax(-1))
        loss = -chosen.log_prob(chosen.sample()).mean()
        loss.backward()
        model.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    count = int(os.environ["WORLD_SIZE"])
    processes = [
        mp.get_context("spawn").Process(target=work, args=(rank, count)) for rank in range(count)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
