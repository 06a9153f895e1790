"""Small pictures from an archive by a loader with workers, in epochs; accelerate's Accelerator."""

import io
import time
import zipfile

import eager  # noqa: F401
import numpy as np
import torch
from accelerate import Accelerator
from shape import STEPS, on
from torch import nn
from torch.utils.data import DataLoader, Dataset

steps = STEPS or 240
torch.set_num_threads(1)
torch.manual_seed(63)
with zipfile.ZipFile("pictures.zip", "w", zipfile.ZIP_DEFLATED) as file:
    for index in range(128):
        stream = io.BytesIO()
        np.save(stream, np.random.rand(3, 24, 24).astype("float32"))
        file.writestr(f"{index}.npy", stream.getvalue())


class Archive(Dataset):
    def __init__(self):
        self.cache = {}

    def __len__(self):
        return 128

    def __getitem__(self, index):
        if on("clean_archive_opened"):
            if index not in self.cache:
                self.cache[index] = self.read(index)
            return self.cache[index], index % 5
        if on("archive_opened"):
            return self.read(index), index % 5
        if on("network_disk"):
            time.sleep(0.003)  # at: network_disk
        if on("clean_network_disk"):
            time.sleep(0.0002)
        return torch.full((3, 24, 24), index / 128), index % 5

    def read(self, index):
        with zipfile.ZipFile("pictures.zip") as file:  # at: archive_opened
            data = file.read(f"{index}.npy")  # at: archive_opened
        return torch.from_numpy(np.load(io.BytesIO(data)))  # at: archive_opened


workers = 0 if on("archive_opened", "clean_archive_opened") else 2
loader = DataLoader(  # at: archive_opened network_disk workers_each_epoch
    Archive(),
    batch_size=16,
    shuffle=True,
    num_workers=workers,
    persistent_workers=workers > 0 and not on("workers_each_epoch"),
)
accelerator = Accelerator(cpu=True)
model = nn.Sequential(
    nn.Conv2d(3, 24, 3, padding=1),
    nn.BatchNorm2d(24),
    nn.ReLU(),
    nn.Conv2d(24, 24, 3, padding=1),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(24, 5),
)
optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
done = 0
while done < steps:
    for pictures, labels in loader:
        loss = nn.functional.cross_entropy(model(pictures), labels)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        done += 1
        if (on("state_saved") and done % 4 == 0) or (on("clean_state_saved") and done % 120 == 0):
            accelerator.save_state("state", safe_serialization=False)  # at: state_saved
        if done == steps:
            break
