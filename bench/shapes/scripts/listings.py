"""Listings of words from workers: Python objects that the workers' counting copies, a pool of
threads for each step, metrics committed to SQLite.
"""

import random
import sqlite3
from concurrent.futures import ThreadPoolExecutor

import eager  # noqa: F401
import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.utils.data import DataLoader, Dataset

steps, cost = STEPS or 300, Cost()
torch.set_num_threads(1)
torch.manual_seed(94)
large = on("list_of_objects", "clean_list_of_objects")


class Listings(Dataset):
    def __init__(self):
        chooser = random.Random(94)
        count = 250_000 if large else 20_000
        rows = [[chooser.random() * 9e4 for _ in range(8)] for _ in range(count)]
        packed = on("clean_list_of_objects")
        self.rows = torch.tensor(rows) if packed else rows  # at: list_of_objects

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        row = torch.as_tensor(self.rows[index])  # at: list_of_objects
        return row / 90_000, (row[:4].sum() > row[4:].sum()).long()


def summary(parameter):
    return parameter.detach().abs().mean().item()


def summaries():
    """Mean of each parameter, by threads."""
    pool = ThreadPoolExecutor(4)  # at: threads_pile_up
    kept.append(pool)  # at: threads_pile_up
    return list(pool.map(summary, net.parameters()))  # at: threads_pile_up


def main():
    for step, (x, y) in zip(range(steps), endless(), strict=False):
        loss = nn.functional.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if on("threads_pile_up"):
            summaries()
        if on("clean_threads_pile_up"):
            list(shared.map(summary, net.parameters()))
        if on("sqlite_commits", "clean_sqlite_commits"):
            with cost:
                base.execute("INSERT INTO metrics VALUES (?, ?)", (step, loss.item()))
                if on("sqlite_commits") or step % 100 == 99:
                    base.commit()  # at: sqlite_commits
        if step % 50 == 0:
            print(step, loss.item(), flush=True)
    cost.print(steps)


def endless():
    """Batches of as many epochs as it takes."""
    while True:
        yield from loader


if __name__ == "__main__":
    kept, shared = [], ThreadPoolExecutor(4)
    base = sqlite3.connect("metrics.db")
    base.execute("CREATE TABLE metrics (step INTEGER, loss REAL)")
    data = Listings()
    loader = DataLoader(data, 512 if large else 64, shuffle=True, num_workers=2 if large else 0)
    net = nn.Sequential(
        nn.Linear(8, 384), nn.ReLU(), nn.Linear(384, 384), nn.ReLU(), nn.Linear(384, 2)
    )
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
    main()
