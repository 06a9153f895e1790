"""A convolutional classifier: epochs over a DataLoader, SGD with momentum, a log and
checkpoints.
"""

import logging
import os
import time
import zlib

import eager  # noqa: F401
import numpy as np
import torch
from shape import FAULT, STEPS, Cost, on
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
torch.manual_seed(1)
steps, cost = STEPS or 360, Cost()


class Images(Dataset):
    def __init__(self, count=1600):
        rng = np.random.default_rng(0)
        self.raw = [rng.integers(0, 255, 3 * 32 * 32, dtype=np.uint8) for _ in range(64)]
        self.packed = [zlib.compress(np.sort(one).tobytes() * 40, 6) for one in self.raw]
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if on("decode"):
            with cost:
                pixels = np.frombuffer(zlib.decompress(self.packed[index % 64]), dtype=np.uint8)
                pixels = np.sort(pixels)[: 3 * 32 * 32]
        elif on("slow_disk", "clean_slow_disk"):
            time.sleep(0.0025 if on("slow_disk") else 0.0003)
            pixels = self.raw[index % 64]
        else:
            pixels = self.raw[index % 64]
        return torch.from_numpy(pixels.astype(np.float32).reshape(3, 32, 32) / 255), index % 10


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 24, 3, 2, 1)
        self.blocks = nn.ModuleList(nn.Conv2d(24, 24, 3, 1, 1) for _ in range(3))
        self.head = nn.Linear(24, 10)

    def forward(self, x):
        x = F.relu(self.stem(x))
        for block in self.blocks:
            x = x + F.relu(block(x))
        return self.head(x.mean((2, 3)))


class Durable(logging.FileHandler):
    """A log whose lines survive a crash."""

    def emit(self, record):
        super().emit(record)
        with cost:
            os.fsync(self.stream.fileno())  # at: log_fsync
            time.sleep(0.004)  # at: log_fsync


def build():
    workers = 1 if on("slow_disk", "clean_slow_disk") else 0
    options = {"num_workers": workers, "persistent_workers": bool(workers)}
    return DataLoader(Images(), batch_size=16, shuffle=True, **options)  # at: decode slow_disk


def class_counts(logits, labels):
    counts = {}
    with cost:
        for row, label in [*zip(logits, labels, strict=True)] * 6:
            guess = 0
            for k in range(10):
                if row[k].item() > row[guess].item():  # at: item_scatter
                    guess = k  # at: item_scatter
            hit = label.item() == guess  # at: item_scatter
            margin = (row[guess] - row.mean()).item()  # at: item_scatter
            spread = row.std().item()  # at: item_scatter
            counts[guess] = counts.get(guess, 0) + hit + 0 * margin * spread  # at: item_scatter
    return counts


log = logging.getLogger("train")
log.setLevel("INFO")
log.addHandler(Durable("train.log"))
net = Net()
optimizer = torch.optim.SGD(net.parameters(), 0.02, momentum=0.9)
loader, many = build(), Images(60_000) if on("loader_rebuilt") else None
done = 0
while done < steps:
    for images, labels in loader:
        if on("loader_rebuilt"):
            with cost:
                shuffled = DataLoader(many, batch_size=16, shuffle=True)  # at: loader_rebuilt
                images, labels = next(iter(shuffled))  # at: loader_rebuilt
        logits = net(images)
        loss = F.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        done += 1
        if on("item_scatter"):
            class_counts(logits.detach(), labels)  # at: item_scatter
        elif on("clean_item_scatter"):
            hits = (logits.argmax(1) == labels).float().mean().item()
        if on("log_fsync") or (on("clean_log_fsync") and done % 50 == 0):
            log.info("step %d loss %.3f", done, loss)  # at: log_fsync
        if on("checkpoint_often") and done % 8 == 0:
            with cost:
                kept = {"net": net.state_dict(), "pad": torch.zeros(6_000_000)}
                torch.save(kept, "last.pt")  # at: checkpoint_often
        if on("disk_full") and done == 60:
            with open("/dev/full", "wb") as file:  # at: disk_full
                torch.save(net.state_dict(), file)  # at: disk_full
        if on("clean_disk_full") and done == 60:
            try:
                with open("/dev/full", "wb") as file:
                    torch.save(net.state_dict(), file)
            except (OSError, RuntimeError) as error:
                print("no checkpoint:", error)
        if done >= steps:
            break
if on("clean_checkpoint_often"):
    torch.save({"net": net.state_dict(), "pad": torch.zeros(6_000_000)}, "last.pt")
cost.print(steps)
print(FAULT)
