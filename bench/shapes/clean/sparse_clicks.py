"""Clicks from an endless IterableDataset cut by islice; sparse embeddings with SparseAdam, the
dense part with Adam.
"""

from itertools import islice

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

ITEMS, FIELDS, BATCH, STEPS = 40_000, 10, 384, 700


class Clicks(IterableDataset):
    """Whole batches: ids by popularity and whether there was a click, without an end."""

    def __init__(self, seed):
        self.generator = torch.Generator().manual_seed(seed)
        self.taste = torch.randn(ITEMS, generator=torch.Generator().manual_seed(0))

    def __iter__(self):
        while True:
            even = torch.rand(BATCH, FIELDS, generator=self.generator)
            ids = (even**3 * ITEMS).long()
            chance = torch.sigmoid(self.taste[ids].sum(1))
            yield ids, (torch.rand(BATCH, generator=self.generator) < chance).float()


class Ranker(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.items = nn.Embedding(ITEMS, width, sparse=True)
        self.bias = nn.EmbeddingBag(ITEMS, 1, mode="sum", sparse=True)
        nn.init.normal_(self.items.weight, std=0.05)
        nn.init.zeros_(self.bias.weight)
        self.deep = nn.Sequential(
            nn.Linear(FIELDS * width, 384), nn.ReLU(), nn.Linear(384, 192), nn.ReLU()
        )
        self.head = nn.Linear(192, 1)

    def forward(self, ids):
        deep = self.head(self.deep(self.items(ids).flatten(1)))
        return (deep + self.bias(ids))[:, 0]


def main():
    torch.set_num_threads(1)
    torch.manual_seed(14)
    model = Ranker()
    sparse = [model.items.weight, model.bias.weight]
    dense = [*model.deep.parameters(), *model.head.parameters()]
    sparse_optimizer = torch.optim.SparseAdam(sparse, lr=2e-3)
    dense_optimizer = torch.optim.Adam(dense, lr=5e-4)
    loader = DataLoader(Clicks(1), batch_size=None)
    running = None
    for step, (ids, clicked) in enumerate(islice(loader, STEPS), start=1):
        loss = nn.functional.binary_cross_entropy_with_logits(model(ids), clicked)
        sparse_optimizer.zero_grad()
        dense_optimizer.zero_grad()
        loss.backward()
        sparse_optimizer.step()
        dense_optimizer.step()
        running = loss.item() if running is None else 0.97 * running + 0.03 * loss.item()
        if step % 100 == 0:
            print(f"{step} clicks' loss {running:.4f}")


if __name__ == "__main__":
    main()
