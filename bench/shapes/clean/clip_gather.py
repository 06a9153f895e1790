"""Pictures and captions drawn together (as CLIP does) on two ranks of DDP: the embeddings of both
are gathered for the loss, each rank does equal work.
"""

import math
import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class TwoTowers(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.picture = nn.Sequential(
            nn.Conv2d(3, 24, 3, 2, 1), nn.GELU(), nn.Conv2d(24, 48, 3, 2, 1), nn.GELU(),
            nn.Flatten(), nn.Linear(48 * 36, width),
        )  # fmt: skip
        self.words = nn.Embedding(300, 96)
        self.text = nn.Sequential(nn.Linear(96 * 6, 256), nn.GELU(), nn.Linear(256, width))
        self.scale = nn.Parameter(torch.tensor(math.log(1 / 0.1)))

    def forward(self, pictures, captions):
        left = F.normalize(self.picture(pictures), dim=-1)
        right = F.normalize(self.text(self.words(captions).flatten(1)), dim=-1)
        return left, right, self.scale.exp()


def gather(mine):
    """Embeddings of all ranks; only this rank's carry a gradient."""
    everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, mine.detach().contiguous())
    everyone[dist.get_rank()] = mine
    return torch.cat(everyone)


def worker(rank, place):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=2)
    torch.manual_seed(0)
    looks = torch.randn(300, 3, 24, 24) * 0.5
    model = DistributedDataParallel(TwoTowers())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    torch.manual_seed(10 + rank)
    captions = torch.randint(300, (6_000, 6))
    pictures = looks[captions].mean(1) * 2 + 0.2 * torch.randn(6_000, 3, 24, 24)
    target = torch.arange(64) + 64 * rank
    for step in range(280):
        chosen = torch.randint(6_000, (64,))
        left, right, scale = model(pictures[chosen], captions[chosen])
        all_left, all_right = gather(left), gather(right)
        loss = F.cross_entropy(scale * left @ all_right.T, target)
        loss = (loss + F.cross_entropy(scale * right @ all_left.T, target)) / 2
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            model.module.scale.clamp_(0, math.log(100))
        if rank == 0 and step % 50 == 0:
            print(f"step {step} loss {loss.item():.4f} scale {scale.item():.2f}", flush=True)
    if rank == 0:
        torch.save(model.module.state_dict(), "towers.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(worker, args=(os.path.join(folder, "rendezvous"),), nprocs=2)
