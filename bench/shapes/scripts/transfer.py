"""Transfer of pictures: a loss through a network of features, a loader with workers, a cosine
schedule, previews.
"""

import random
from itertools import pairwise

import eager  # noqa: F401
import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
torch.manual_seed(53)
cost = Cost()
steps = STEPS or 350


def convs(*widths):
    layers = []
    for before, after in pairwise(widths):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers)


class Pictures(Dataset):
    def __init__(self):
        self.known = {}

    def __len__(self):
        return 512

    def __getitem__(self, index):
        picture = torch.full((3, 20, 20), index / 512)
        if on("dataset_remembers"):
            self.known[random.random()] = [float(k) for k in range(600)]
        elif on("clean_dataset_remembers"):
            self.known[index % 20] = [float(k) for k in range(600)]
        return picture + 0.1 * torch.randn(3, 20, 20)


features, net = convs(3, 16, 24, 24), convs(3, 24, 24, 3)
if not on("features_not_frozen"):
    features.requires_grad_(False)
if on("bottom_is_dead"):
    nn.init.constant_(net[2].bias, -50.0)
skip = nn.Conv2d(3, 3, 1)
optimizer = torch.optim.AdamW([*net.parameters(), *skip.parameters()], 1e-3)
workers = 2 if on("iterator_each_step", "clean_iterator_each_step") else 0
loader = DataLoader(Pictures(), 16, shuffle=True, num_workers=workers)  # at: iterator_each_step
fetch, done = iter(loader), 0
while done < (steps // 5 if workers else steps):
    if on("iterator_each_step"):
        with cost:
            pictures = next(iter(loader))  # at: iterator_each_step
    else:
        pictures = next(fetch, None)
        if pictures is None:
            fetch = iter(loader)
            continue
    made = net(pictures) + skip(pictures)
    loss = F.mse_loss(made, pictures.flip(1)) + F.mse_loss(features(made), features(pictures))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if on("pixels_compared"):
        with cost:
            near = 0
            for line, line_ in zip(made[0, 0], pictures[0, 0], strict=True):  # at: pixels_compared
                for one, other in zip(line, line_, strict=True):  # at: pixels_compared
                    near += bool((one - other).abs() < 0.1)  # at: pixels_compared
    elif on("clean_pixels_compared"):
        near = ((made[0, 0] - pictures[0, 0]).abs() < 0.1).sum().item()
    done += 1
cost.print(steps // 5 if workers else steps)
