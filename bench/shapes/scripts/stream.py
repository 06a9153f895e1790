"""Readings from shards by an IterableDataset, from one memory-mapped file, and by a batch sampler:
workers that repeat each other, a copy of the whole file, a draw over all rows for each batch.
"""

import eager  # noqa: F401
import numpy as np
import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

steps, cost = STEPS or 350, Cost()
ROWS = 60_000


class Shards(IterableDataset):
    """All shards one after the other, split over the workers."""

    def __init__(self, rows):
        self.rows = rows

    def __iter__(self):
        worker = get_worker_info()
        first, stride = (worker.id, worker.num_workers) if worker else (0, 1)
        if on("workers_repeat"):
            first, stride = 0, 1  # at: workers_repeat
        order = np.random.default_rng(3).permutation(len(self.rows))
        for index in order[first::stride]:
            yield torch.from_numpy(self.rows[index].copy())


class Mapped(Dataset):
    """Rows of a memory-mapped file."""

    def __init__(self, path):
        self.rows = np.load(path, mmap_mode="r")

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        if on("mmap_copied") and index % 16 == 0:
            with cost:
                return torch.from_numpy(np.array(self.rows)[index])  # at: mmap_copied
        return torch.from_numpy(self.rows[index].copy())


class Weighted:
    """Batches of rows that are drawn by weight."""

    def __init__(self, weights, size):
        self.weights, self.size = weights, size

    def __iter__(self):
        pool = torch.multinomial(self.weights, len(self.weights), True).tolist()
        for start in range(0, 10**9, self.size):
            if on("sampler_draws"):
                with cost:
                    chances = self.weights / self.weights.sum()  # at: sampler_draws
                    pool = torch.multinomial(chances, self.size, True).tolist()  # at: sampler_draws
                yield pool
            else:
                begin = start % (len(pool) - self.size)
                yield pool[begin : begin + self.size]


def main():
    torch.set_num_threads(1)
    torch.manual_seed(83)
    rows = np.random.default_rng(1).standard_normal((ROWS, 64)).astype("float32")
    np.save("rows.npy", rows)
    if on("workers_repeat", "clean_workers_repeat"):
        loader = DataLoader(Shards(rows), 64, num_workers=2)  # at: workers_repeat
    elif on("sampler_draws", "clean_sampler_draws"):
        weights = torch.rand(400_000, dtype=torch.float64)
        weights[ROWS:] = 0
        sampler = Weighted(weights, 64)
        loader = DataLoader(Mapped("rows.npy"), batch_sampler=sampler)  # at: sampler_draws
    else:
        loader = DataLoader(Mapped("rows.npy"), 64, shuffle=True)  # at: mmap_copied
    model = nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU())
    head = nn.Linear(512, 64)
    optimizer = torch.optim.AdamW([*model.parameters(), *head.parameters()], 1e-3)
    done = 0
    while done < steps:
        for x in loader:
            loss = (head(model(x * (torch.rand_like(x) > 0.3))) - x).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            done += 1
            if done == steps:
                break
    cost.print(steps)


if __name__ == "__main__":
    main()
