"""Pictures from files on disk by a DataLoader, an evaluation inside the loop; plain PyTorch as in
a tutorial.
"""

import fcntl
import os
import time

import numpy as np
import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
torch.manual_seed(0)
cost = Cost()
steps = STEPS or 300


def write_files(folder):
    os.makedirs(folder, exist_ok=True)
    rng = np.random.default_rng(0)
    for k in range(48):
        small = rng.integers(0, 255, (28, 28, 3), dtype=np.uint8)
        picture = np.repeat(np.repeat(small, 7, 0), 7, 1)
        np.savez_compressed(f"{folder}/{k}.npz", picture=picture)
        np.save(f"{folder}/{k}.npy", small)


class Folder(Dataset):
    def __init__(self, folder, count):
        self.folder, self.count = folder, count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if on("archives", "lone_worker"):
            with cost, np.load(f"{self.folder}/{index % 48}.npz") as archive:
                picture = archive["picture"][::7, ::7]
        else:
            picture = np.load(f"{self.folder}/{index % 48}.npy")
        return torch.from_numpy(picture.astype(np.float32) / 255).permute(2, 0, 1), index % 4


def together(rows):
    if on("locked_collate", "clean_locked_collate"):
        with open("cache.lock", "a") as file, cost:
            fcntl.flock(file, fcntl.LOCK_EX)
            fcntl.flock(file, fcntl.LOCK_UN)
    return torch.stack([x for x, _ in rows]), torch.tensor([y for _, y in rows])


def other_job():
    """Another program that uses the same cache."""
    parent = os.getpid()
    if os.fork():
        return
    with open("cache.lock", "a") as file:
        while os.getppid() == parent:
            fcntl.flock(file, fcntl.LOCK_EX)
            time.sleep(0.012)
            fcntl.flock(file, fcntl.LOCK_UN)
            time.sleep(0.001)
    os._exit(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 16, 5), nn.Conv2d(16, 32, 5)
        self.fc = nn.Linear(512, 4)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc(x.flatten(1))


def main():
    write_files("pictures")
    workers, count = 0, 16 * 400
    if on("lone_worker", "clean_lone_worker", "clean_workers_eight"):
        workers = 1
    if on("workers_eight"):
        workers, count = 8, 16 * 30
    if on("locked_collate"):
        other_job()
    train = DataLoader(  # at: archives lone_worker workers_eight locked_collate
        Folder("pictures", count),  # at: archives lone_worker workers_eight locked_collate
        batch_size=16,  # at: archives lone_worker workers_eight locked_collate
        shuffle=True,  # at: archives lone_worker workers_eight locked_collate
        num_workers=workers,  # at: archives lone_worker workers_eight locked_collate
        collate_fn=together,  # at: archives lone_worker workers_eight locked_collate
    )
    net = Net()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    done = 0
    for epoch in range(10_000):
        for data in train:
            inputs, labels = data
            optimizer.zero_grad()
            outputs = net(inputs)
            loss = criterion(outputs, labels)
            loss.backward()
            optimizer.step()
            done += 1
            if done % 100 == 0:
                print(f"[{epoch}, {done}] loss: {loss.item():.3f}")
            if done >= steps:
                return


if __name__ == "__main__":
    main()
    if not on("lone_worker", "workers_eight"):
        cost.print(steps)
