"""DistributedDataParallel under torchrun's variables, with a sampler and reductions of the loss."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("nccl")
rank, local = dist.get_rank(), int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local)
device = torch.device("cuda", local)
model = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512)).to(device)
model = DDP(nn.SyncBatchNorm.convert_sync_batchnorm(model), device_ids=[local])
optimizer = torch.optim.AdamW(model.parameters())
data = TensorDataset(torch.randn(256, 512))
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=8, sampler=sampler)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for (x,) in loader:
        x = x.to(device)
        loss = (model(x) - x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        dist.barrier()
        if rank == 0:
            print(total.item() / dist.get_world_size())
assert model.module[0].weight.shape == (2048, 512)
dist.destroy_process_group()
