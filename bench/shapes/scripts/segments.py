"""Segmentation of discs by a small U-Net: a stream of shards, a collate of its own, meters,
previews and validation in one script.
"""

import io
import json

import eager  # noqa: F401
import numpy as np
import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, IterableDataset

torch.set_num_threads(1)
torch.manual_seed(51)
cost = Cost()
steps, side = STEPS or 300, 32


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(1, 12, 3, padding=1), nn.Conv2d(12, 24, 3, 2, 1)
        self.middle = nn.Conv2d(24, 24, 3, padding=1)
        self.up, self.out = nn.ConvTranspose2d(24, 12, 2, 2), nn.Conv2d(24, 3, 1)

    def forward(self, x):
        skip = F.relu(self.down1(x))
        x = F.relu(self.middle(F.relu(self.down2(skip))))
        return self.out(torch.cat([skip, F.relu(self.up(x))], 1))


def disc(index):
    grid = np.mgrid[:side, :side]
    middle = np.array([8 + index % 16, 8 + index // 16 % 16])[:, None, None]
    far = np.sqrt(((grid - middle) ** 2).sum(0))
    return (far < 5).astype(np.int64) + (far < 9)


class Discs(Dataset):
    def __len__(self):
        return steps * 8

    def __getitem__(self, index):
        if on("mask_by_pixel"):
            with cost:
                mask = np.zeros((side, side), np.int64)
                for y in range(side):
                    for x in range(side):
                        far = ((y - 8 - index % 16) ** 2 + (x - 8 - index // 16 % 16) ** 2) ** 0.5
                        mask[y, x] = (far < 5) + (far < 9)
        else:
            mask = disc(index)
        picture = mask + 0.3 * np.random.randn(side, side)
        return torch.from_numpy(picture[None]).float(), torch.from_numpy(mask)


class Shards(IterableDataset):
    """Lines of JSON, as a web data set keeps them."""

    def __iter__(self):
        lines = [json.dumps((disc(k) / 1.0).tolist()) for k in range(64)]
        for k in range(steps * 8):
            with cost:
                picture = torch.tensor(json.loads(lines[k % 64]))
                if on("json_shards"):
                    for _ in range(2):
                        picture = torch.tensor(json.loads(json.dumps(picture.tolist())))
            yield picture[None] + 0.3 * torch.randn(1, side, side), picture.long()


def padded(rows):
    """A collate that copies each picture into a larger canvas, value by value."""
    if on("padded_by_hand"):
        with cost:
            for picture, _ in rows:
                canvas = [[0.0] * (side + 8) for _ in range(side + 8)]
                for y, line in enumerate(picture[0].tolist()):
                    for x, value in enumerate(line):
                        canvas[y + 4][x + 4] = value
    return torch.stack([one for one, _ in rows]), torch.stack([one for _, one in rows])


class Meter:
    def __init__(self):
        self.values = []

    def update(self, value):
        self.values.append(value)


def confusion(scores, masks):
    table = [[0] * 3 for _ in range(3)]
    guesses = scores.argmax(1).flatten().tolist()  # at: confusion_by_pixel
    pairs = zip(guesses, masks.flatten().tolist(), strict=True)
    for guess, mask in pairs:  # at: confusion_by_pixel
        table[mask][guess] += 1  # at: confusion_by_pixel
    return table


def preview(scores):
    file = io.BytesIO()
    for _ in range(6):
        np.savez_compressed(file, scores.softmax(1).detach().numpy())  # at: previews_packed
    return len(file.getvalue())


def validate(model, pictures, masks):
    model.eval()
    with torch.set_grad_enabled(on("validated_with_graph")):
        losses = []
        for _ in range(6):  # at: validated_with_graph
            losses.append(F.cross_entropy(model(pictures), masks))  # at: validated_with_graph
    model.train()
    return sum(float(one) for one in losses)


model, meter = UNet(), Meter()
optimizer = torch.optim.Adam(model.parameters(), 2e-3)
source = Shards() if on("json_shards", "clean_json_shards") else Discs()
loader = DataLoader(source, 8, collate_fn=padded)  # at: json_shards mask_by_pixel padded_by_hand
for step, (pictures, masks) in enumerate(loader):  # at: json_shards mask_by_pixel padded_by_hand
    scores = model(pictures)
    loss = F.cross_entropy(scores, masks)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if on("meter_of_tensors"):
        meter.update(loss * len(pictures))
    else:
        meter.update(loss.item())
    if on("confusion_by_pixel") or (on("clean_confusion_by_pixel") and step % 40 == 0):
        with cost:
            confusion(scores, masks)
    if on("previews_packed") or (on("clean_previews_packed") and step % 60 == 0):
        with cost:
            preview(scores)
    if on("validated_with_graph", "clean_validated_with_graph") and step % 25 == 24:
        validate(model, pictures, masks)  # at: validated_with_graph
cost.print(steps)
