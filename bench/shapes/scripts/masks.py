"""Segmentation with a small U-Net and a trainer of one's own: augmentation by pixels, intersections
counted on the host, copies of the best weights, an empty mask, images drawn anew.
"""

import copy
import json

import eager  # noqa: F401
import numpy as np
import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

steps = STEPS or 260
torch.set_num_threads(1)
torch.manual_seed(101)
cost = Cost()


class Cells(Dataset):
    """Bright discs on noise."""

    def __len__(self):
        return 640

    def __getitem__(self, index):
        random = np.random.default_rng(index)
        y, x = np.mgrid[:48, :48]
        cy, cx, radius = random.uniform(12, 36), random.uniform(12, 36), random.uniform(4, 10)
        mask = ((y - cy) ** 2 + (x - cx) ** 2 < radius**2).astype(np.float32)
        image = (mask + random.normal(0, 0.5, mask.shape)).astype(np.float32)
        if on("jitter_by_pixel"):
            for row in range(48):
                for column in range(48):
                    image[row, column] *= 0.9 + 0.2 * random.random()  # at: jitter_by_pixel
        elif on("clean_jitter_by_pixel"):
            image *= 0.9 + 0.2 * random.random(image.shape)
        if on("empty_mask") and index % 160 == 77:
            mask[:] = 0.0
        return torch.from_numpy(image)[None], torch.from_numpy(mask)[None]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)
        self.up = nn.ConvTranspose2d(32, 16, 2, stride=2)
        self.head = nn.Conv2d(32, 1, 1)

    def forward(self, x):
        a = F.relu(self.down1(x))
        b = F.relu(self.down2(F.max_pool2d(a, 2)))
        z = self.head(torch.cat([a, F.relu(self.up(b))], 1))
        return z.sigmoid() if on("sigmoid_twice") else z  # at: sigmoid_twice


def dice(logits, masks):
    kept = logits.sigmoid() * masks
    both = kept.flatten(1).sum(1)
    sizes = masks.flatten(1).sum(1)
    if on("clean_empty_mask"):
        sizes = sizes.clamp_min(1.0)
    return 1 - (both / sizes).mean()  # at: empty_mask


class Trainer:
    """Trains, scores and keeps the best."""

    def __init__(self):
        self.net = Net()
        self.optimizer = torch.optim.AdamW(self.net.parameters(), 2e-3)
        self.best, self.kept = float("inf"), None
        self.scores = []

    def loss(self, logits, masks):
        if on("empty_mask", "clean_empty_mask"):
            return dice(logits, masks)
        return F.binary_cross_entropy_with_logits(logits, masks)

    def score(self, logits, masks):
        if on("counted_by_pixel"):
            with cost:
                hits = 0
                found, wanted = logits[:2].flatten() > 0, masks[:2].flatten() > 0
                for a, b in zip(found.tolist(), wanted.tolist(), strict=True):
                    hits += a == b  # at: counted_by_pixel
                self.scores.append(hits)
        elif on("clean_counted_by_pixel"):
            self.scores.append(((logits > 0) == (masks > 0)).sum().item())

    def keep(self, loss):
        if on("copied_each_step"):
            with cost:
                self.kept = copy.deepcopy(self.net.state_dict())  # at: copied_each_step
                json.dumps(
                    {name: value.tolist() for name, value in self.kept.items()}
                )  # at: copied_each_step
        elif on("clean_copied_each_step") and loss < 0.7 * self.best:
            self.best, self.kept = loss, copy.deepcopy(self.net.state_dict())

    def step(self, images, masks):
        self.optimizer.zero_grad()
        logits = self.net(images)  # at: sigmoid_twice
        loss = self.loss(logits, masks)  # at: sigmoid_twice empty_mask
        loss.backward()  # at: empty_mask
        self.optimizer.step()
        self.score(logits.detach(), masks)  # at: counted_by_pixel
        self.keep(loss.item())  # at: copied_each_step
        return loss

    def run(self, loader):
        done = 0
        while True:
            for images, masks in loader:  # at: jitter_by_pixel
                loss = self.step(images, masks)  # at: counted_by_pixel copied_each_step
                done += 1
                if done % 40 == 0:
                    print(done, round(loss.item(), 4), flush=True)
                if done == steps:
                    return


loader = DataLoader(Cells(), batch_size=16, shuffle=True)  # at: jitter_by_pixel
Trainer().run(loader)
cost.print(steps)
