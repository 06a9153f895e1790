"""A small training fed by a DataLoader, with one fault of choice in its input (environment variable FAULT) or none.

The training keeps its own clock around each fetch; the last line printed is what the fault cost.
"""

import json
import os
import resource
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

FAULT = os.environ.get("FAULT", "none")
STEPS = int(os.environ.get("STEPS", "150"))
BATCH = 4
EPOCH_STEPS = 40
STEP_S = 0.010

torch.set_num_threads(1)
torch.manual_seed(0)


class Items(Dataset):
    """Rows of 64 numbers, made the way that FAULT says."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if FAULT == "busy_workers":
            spin(0.007)
        elif FAULT == "one_slow_worker" and torch.utils.data.get_worker_info().id == 1:
            time.sleep(0.012)
        return torch.randn(64)


def spin(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def many_objects(rows):
    """A batch that takes long to unpickle: as plain Python objects."""
    words = [{"id": i, "word": f"word {i}", "span": (i, i + 1)} for i in range(25_000)]
    return torch.stack(rows), words


def make_loader():
    if FAULT == "busy_workers":
        return DataLoader(Items(STEPS * BATCH), BATCH, num_workers=1)
    if FAULT == "one_slow_worker":
        return DataLoader(Items(STEPS * BATCH), BATCH, num_workers=2)
    if FAULT == "objects":
        return DataLoader(Items(STEPS * BATCH), BATCH, num_workers=1, collate_fn=many_objects)
    if FAULT == "epochs":
        return DataLoader(Items(EPOCH_STEPS * BATCH), BATCH, num_workers=1, multiprocessing_context="spawn")
    return DataLoader(Items(STEPS * BATCH), BATCH, num_workers=1)


def epochs(loader):
    """Batches of as many epochs as STEPS need, and how long the training waited for each, epoch's first one marked."""
    done = 0
    while done < STEPS:
        begin = time.perf_counter()
        batches = iter(loader)
        first = True
        while (batch := next(batches, None)) is not None and done < STEPS:
            yield batch, time.perf_counter() - begin, first
            done += 1
            begin, first = time.perf_counter(), False


class Net(nn.Module):
    """Takes ten milliseconds, mostly without a core, as if a device computed."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))

    def forward(self, x):
        time.sleep(STEP_S)
        return self.layers(x)


def main():
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    loader = make_loader()
    kept = []
    if FAULT == "open_files":
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        kept = [open(os.devnull) for _ in range(70)]
    waits, starts = [], []
    ended = time.perf_counter()
    for batch, _, first in epochs(loader):
        waited = time.perf_counter() - ended
        (starts if first else waits).append(waited)
        inputs = batch[0] if isinstance(batch, (tuple, list)) else batch
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        ended = time.perf_counter()
    lost_s = sum(waits)
    if FAULT == "epochs":
        lost_s = sum(starts[1:]) - (len(starts) - 1) * sum(waits) / len(waits)
    truth = lost_s / STEPS * 1e3 if FAULT in ("busy_workers", "one_slow_worker", "objects", "epochs") else 0.0
    print(json.dumps({"truth_ms_per_step": truth, "steps": STEPS, "open": len(kept)}))


if __name__ == "__main__":
    main()
